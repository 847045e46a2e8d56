"use strict";
// `ShardingTest`: a cluster that a suite starts for itself.
const { assert } = require("../assert/assert.js");
const { tojson } = require("../tojson.js");
const { Mongo } = require("../connection/mongo.js");
const { isKeyFile, withMember } = require("./members.js");
const { MongoRunner, connectToRouter } = require("./mongo_runner.js");
const { ReplSetTest } = require("./repl_set_test.js");
const { helpersOf } = require("../sh.js");
const { setParameters } = require("./server_parameters.js");
const { parseOptions } = require("./sharding_test_options.js");

const SIGKILL = 9;

class ShardingTestCluster {
  constructor(...parameters) {
    const options = parseOptions(parameters);
    this._options = options;
    this._testName = options.name;
    this.keyFile = options.keyFile;
    if (options.ownServers) this._startOwnServers(options.ownServers);
    else this._startWithLauncher(options.launcherOptions);
    this._shardNames = this._connections.map((each) => each.shardName);
    this._nameConfigServers();
    ShardingTestCluster.running.add(this);
    this._applySettings(options);
  }

  static running = new Set();

  _startWithLauncher(launcherOptions) {
    this._directory = host.launcher.newDirectory();
    this._cluster = host.launcher.up(this._directory, launcherOptions);
    const attached = (name, daemon) =>
      new ReplSetTest({ attachTo: { directory: this._directory, name, daemon, cluster: this._cluster } });
    this.configRS = attached("config", "configd");
    this._nameRouters(this._processes("router").map((each) => new Mongo(each.address)));
    this._nameShards(this._cluster.shards.map(({ _id: name }) => attached(name, "shardd")));
  }

  // A cluster that the launcher cannot start: with shards that the suite adds itself or that differ in size, or with
  // access control and without users.
  _startOwnServers({ members, configServers, routers, addsShards, setParameter, oplogSize, keyFile }) {
    this.configRS = new ReplSetTest({ name: "config", nodes: configServers, configsvr: "", keyFile });
    const sets = members.map(
      (nodes, index) =>
        new ReplSetTest({ name: `shard${index}`, nodes, shardsvr: "", setParameter, oplogSize, keyFile }),
    );
    const all = [this.configRS, ...sets];
    all.forEach((each) => each._beginStart());
    const router = { configdb: this.configRS.getURL(), waitForConnect: false, keyFile };
    const started = Array.from({ length: routers }, () => MongoRunner.runMongos(router));
    all.forEach((each) => each._finishStart());
    this._nameRouters(started.map(connectToRouter));
    this._nameShards(sets);
    if (!addsShards) return;
    this._asMember(0, (router) => {
      for (const set of sets) assert.commandWorked(router.adminCommand({ addShard: set.getURL(), name: set.name }));
    });
  }

  _processes(role) {
    return this._cluster.processes.filter((each) => each.role === role);
  }

  _nameRouters(connections) {
    this._mongos = connections;
    connections.forEach((connection, index) => this._nameRouter(index, connection));
  }

  _nameRouter(index, connection) {
    this._mongos[index] = connection;
    this[`s${index}`] = connection;
    connection.savedOptions = { configdb: this.configRS.getURL(), keyFile: this.keyFile };
    if (index > 0) return;
    this.s = connection;
    this.admin = connection.getDB("admin");
    this.config = connection.getDB("config");
  }

  _nameShards(sets) {
    this._rs = sets.map((set) => ({ setName: set.name, test: set, nodes: set.nodes, url: set.getURL() }));
    this._connections = sets.map((set, index) => {
      const connection = new Mongo(set.getURL());
      Object.assign(connection, { shardName: set.name, rs: set });
      Object.assign(this, { [`rs${index}`]: set, [`shard${index}`]: connection, [`d${index}`]: connection });
      return connection;
    });
  }

  _nameConfigServers() {
    this._configServers = this.configRS.nodes;
    this._configDB = this.configRS.getURL();
    this._configServers.forEach((node, index) =>
      Object.assign(this, { [`config${index}`]: node, [`c${index}`]: node }),
    );
  }

  _applySettings({ routerParameters, sets, configSet, chunkSizeMB, enableBalancer, enableAutoSplit }) {
    this._mongos.forEach((_, index) =>
      this._asMember(index, (router) => setParameters(router, routerParameters[index])),
    );
    [...this._rs.map((each) => each.test), this.configRS].forEach((set, index) => {
      const configuration = [...sets, configSet][index];
      if (configuration !== null) set._configure(configuration);
    });
    this._asMember(0, (router) => {
      const helpers = helpersOf(() => router.getDB("test"));
      if (chunkSizeMB !== undefined) {
        const settings = router.getDB("config").settings;
        const set = { $set: { value: chunkSizeMB } };
        assert.commandWorked(settings.update({ _id: "chunksize" }, set, { upsert: true }));
      }
      if (!enableBalancer) helpers.stopBalancer();
      if (!enableAutoSplit) helpers.disableAutoSplit();
      else if (!enableBalancer) helpers.enableAutoSplit();
    });
  }

  // Call an action with a connection to a router that may do everything, whichever users the suite's connections have.
  _asMember(index, action) {
    const connection = this._mongos[index];
    return isKeyFile(this.keyFile) ? withMember(connection.host, this.keyFile, action) : action(connection);
  }

  getDB(name) {
    return this.s.getDB(name);
  }

  adminCommand(command) {
    return assert.commandWorked(this.admin.runCommand(command), () => `admin command ${tojson(command)}`).ok === 1;
  }

  // Kill everything and remove the data. It is not needed any more, so the order does not matter.
  stop() {
    if (!ShardingTestCluster.running.delete(this)) return;
    for (const connection of [...this._mongos, ...this._connections]) connection.close();
    const sets = [...this._rs.map((each) => each.test), this.configRS];
    if (this._cluster === undefined) {
      this._mongos.forEach((each) => MongoRunner.stopMongos(each, SIGKILL));
      sets.forEach((each) => each.stopSet(SIGKILL));
      return;
    }
    sets.forEach((each) => each._disconnect());
    host.launcher.discard(this._directory);
  }
}

const define = (name, value) =>
  Object.defineProperty(ShardingTestCluster.prototype, name, { value, writable: true, configurable: true });

// The helpers of `sh`, on the cluster's first router. Methods of ShardingTest itself take precedence.
for (const name of Object.keys(helpersOf(() => undefined))) {
  define(name, function (...parameters) {
    return helpersOf(() => this.getDB("test"))[name](...parameters);
  });
}

for (const part of ["placement", "chunks", "balancer", "processes", "checks"]) {
  for (const [name, value] of Object.entries(require(`./sharding_test_${part}.js`))) define(name, value);
}

function ShardingTest(...parameters) {
  return new ShardingTestCluster(...parameters);
}
ShardingTest.prototype = ShardingTestCluster.prototype;
ShardingTestCluster.prototype.constructor = ShardingTest;

const stopAll = () => [...ShardingTestCluster.running].forEach((each) => each.stop());

module.exports = { ShardingTest, stopAll };
