"use strict";
// `ReplSetTest`: the members of one replica set. Those of a ShardingTest are its shards and config servers, reached through
// their daemons; one that a suite makes itself is a set of plain mongods.
const { assert } = require("../assert/assert.js");
const { unsupported } = require("../errors.js");
const { Mongo } = require("../connection/mongo.js");

class ReplicaSet {
  // `options` may also be the address of a set that is running.
  constructor(options = {}) {
    if (typeof options === "string") return void this._attachToRunning(options);
    const { attachTo, ...rest } = options;
    this._options = rest;
    this.name = attachTo?.name ?? rest.name ?? "shard0";
    this.nodes = [];
    if (attachTo !== undefined) this._attach(attachTo);
  }

  static started = new Set();

  _attachToRunning(address) {
    const seed = new Mongo(address);
    const { setName, hosts, passives = [] } = assert.commandWorked(seed.adminCommand({ hello: 1 }));
    seed.close();
    this._options = {};
    this.name = setName;
    this._connectToAll([...hosts, ...passives]);
  }

  _connectToAll(addresses) {
    this._addresses = addresses;
    this.ports = addresses.map((each) => Number(each.split(":")[1]));
    this.host = addresses[0].split(":")[0];
    this.nodes = addresses.map((each, index) => this._connectTo(each, index));
  }

  _attach({ directory, name, daemon, cluster }) {
    this._directory = directory;
    this.name = name;
    this._daemon = daemon;
    const addressOf = (suffix) => cluster.processes.find((each) => each.name === suffix)?.address;
    const count = cluster.processes.filter((each) => new RegExp(`^${name}\\.\\d+\\.mongod$`).test(each.name)).length;
    this._members = Array.from({ length: count }, (_, index) => `${name}.${index}`);
    this._connectToAll(this._members.map((member) => addressOf(`${member}.${daemon}`)));
  }

  _connectTo(address, index) {
    const node = new Mongo(address);
    Object.assign(node, { nodeId: index, replSetName: this.name });
    node.setSecondaryOk();
    return node;
  }

  // Start the set of a suite that made it by itself.
  startSet(options) {
    const count =
      typeof this._options.nodes === "number"
        ? this._options.nodes
        : Object.keys(this._options.nodes ?? { n0: {} }).length;
    if (options?.shardsvr !== undefined || options?.configsvr !== undefined)
      unsupported("ReplSetTest of shard or config servers");
    const directory = host.launcher.newDirectory();
    const cluster = host.launcher.up(directory, ["--shards", "1", "--members", String(count)]);
    this._attach({ directory, name: "shard0", daemon: "mongod", cluster });
    ReplicaSet.started.add(this);
    return this.nodes;
  }

  initiate() {
    this.getPrimary();
  }

  getReplSetConfig() {
    return this.getReplSetConfigFromNode();
  }

  stopSet() {
    if (ReplicaSet.started.delete(this)) {
      this._disconnect();
      host.launcher.run(this._directory, ["down"]);
    } else this._members.forEach((_, index) => this.stop(index));
  }

  _disconnect() {
    this.nodes.forEach((each) => each.close());
  }

  getURL() {
    return `${this.name}/${this._addresses.join(",")}`;
  }

  getNodeId(node) {
    if (typeof node === "number") return node;
    const index = this.nodes.findIndex((each) => each === node || each.host === node.host);
    assert.neq(-1, index, `${node} is not a member of ${this.name}`);
    return index;
  }

  getPort(node) {
    return this.ports[this.getNodeId(node)];
  }

  nodeList() {
    return [...this._addresses];
  }

  // All nodes that suites run an action on.
  forEachNode(action) {
    this.nodes.forEach((each) => action(each));
  }
}

for (const part of ["state", "processes"]) {
  for (const [name, value] of Object.entries(require(`./repl_set_${part}.js`))) {
    Object.defineProperty(ReplicaSet.prototype, name, { value, writable: true, configurable: true });
  }
}
ReplicaSet.prototype.initiateWithAnyNodeAsPrimary = ReplicaSet.prototype.initiate;
ReplicaSet.prototype.initiateWithHighElectionTimeout = ReplicaSet.prototype.initiate;

function ReplSetTest(...parameters) {
  return new ReplicaSet(...parameters);
}
ReplSetTest.prototype = ReplicaSet.prototype;
ReplicaSet.prototype.constructor = ReplSetTest;
ReplSetTest.kDefaultTimeoutMS = 10 * 60 * 1000;
ReplSetTest.State = { STARTUP: 0, PRIMARY: 1, SECONDARY: 2, RECOVERING: 3, ARBITER: 7, DOWN: 8, ROLLBACK: 9 };

const stopAllSets = () => [...ReplicaSet.started].forEach((each) => each.stopSet());

module.exports = { ReplSetTest, stopAllSets };
