"use strict";
// `ShardingTest`: a cluster that a suite starts for itself.
const { assert } = require("../assert/assert.js");
const { tojson } = require("../tojson.js");
const { Mongo } = require("../connection/mongo.js");
const { ReplSetTest } = require("./repl_set_test.js");
const { helpersOf } = require("../sh.js");
const { setParameters } = require("./server_parameters.js");
const { parseOptions } = require("./sharding_test_options.js");

class ShardingTestCluster {
  constructor(...parameters) {
    const options = parseOptions(parameters);
    this._options = options;
    this._testName = options.name;
    this._directory = host.launcher.newDirectory();
    this._cluster = host.launcher.up(this._directory, options.launcherOptions);
    this._connectRouters();
    this._connectShards();
    this._connectConfigServers();
    ShardingTestCluster.running.add(this);
    this._applySettings(options);
  }

  static running = new Set();

  _processes(role) {
    return this._cluster.processes.filter((each) => each.role === role);
  }

  _connectRouters() {
    this._mongos = this._processes("router").map((each) => new Mongo(each.address));
    this._mongos.forEach((connection, index) => this._nameRouter(index, connection));
  }

  _nameRouter(index, connection) {
    this._mongos[index] = connection;
    this[`s${index}`] = connection;
    if (index > 0) return;
    this.s = connection;
    this.admin = connection.getDB("admin");
    this.config = connection.getDB("config");
  }

  _connectShards() {
    this._rs = [];
    this._connections = this._cluster.shards.map(({ _id: name, host: url }, index) => {
      const set = new ReplSetTest({
        attachTo: { directory: this._directory, name, daemon: "shardd", cluster: this._cluster },
      });
      const connection = new Mongo(url);
      Object.assign(connection, { shardName: name, rs: set });
      this._rs.push({ setName: name, test: set, nodes: set.nodes, url });
      Object.assign(this, { [`rs${index}`]: set, [`shard${index}`]: connection, [`d${index}`]: connection });
      return connection;
    });
    this._shardNames = this._connections.map((each) => each.shardName);
  }

  _connectConfigServers() {
    this.configRS = new ReplSetTest({
      attachTo: { directory: this._directory, name: "config", daemon: "configd", cluster: this._cluster },
    });
    this._configServers = this.configRS.nodes;
    this._configDB = this.configRS.getURL();
    this._configServers.forEach((node, index) =>
      Object.assign(this, { [`config${index}`]: node, [`c${index}`]: node }),
    );
  }

  _applySettings({ routerParameters, chunkSizeMB, enableBalancer, enableAutoSplit }) {
    this._mongos.forEach((connection, index) => setParameters(connection, routerParameters[index]));
    if (chunkSizeMB !== undefined) {
      assert.commandWorked(
        this.config.settings.update({ _id: "chunksize" }, { $set: { value: chunkSizeMB } }, { upsert: true }),
      );
    }
    if (!enableBalancer) this.stopBalancer();
    if (!enableAutoSplit) this.disableAutoSplit();
    else if (!enableBalancer) this.enableAutoSplit();
  }

  getDB(name) {
    return this.s.getDB(name);
  }

  adminCommand(command) {
    return assert.commandWorked(this.admin.runCommand(command), () => `admin command ${tojson(command)}`).ok === 1;
  }

  // Stop everything and remove the data.
  stop() {
    if (!ShardingTestCluster.running.delete(this)) return;
    for (const connection of [...this._mongos, ...this._connections]) connection.close();
    for (const set of [...this._rs.map((each) => each.test), this.configRS]) set._disconnect();
    host.launcher.run(this._directory, ["down"]);
    host.files.remove(this._directory);
  }
}

const define = (name, value) =>
  Object.defineProperty(ShardingTestCluster.prototype, name, { value, writable: true, configurable: true });

// What `sh` has, on the cluster's own first router; methods of ShardingTest itself come first.
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
