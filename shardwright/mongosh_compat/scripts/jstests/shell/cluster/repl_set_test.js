"use strict";
// `ReplSetTest`: the members of one replica set. The sets of a ShardingTest are its shards and config servers, reached
// through their daemons. A set that a suite creates itself has plain mongods, or shard or config servers.
const { assert } = require("../assert/assert.js");
const { unsupported } = require("../errors.js");
const { Mongo } = require("../connection/mongo.js");
const { jsTest } = require("../js_test.js");
const { connectAsMember, isKeyFile, withMember } = require("./members.js");
const { OwnServers } = require("./own_servers.js");
const { parametersIn } = require("./server_parameters.js");
const { OF_MEMBER_CONFIGURATIONS, configurationOf, refuseOthers } = require("./sharding_test_options.js");

const OF_SETS = new Set(["name", "nodes", "nodeOptions", "oplogSize", "setParameter", "settings", "host", "keyFile"]);

// An option without a value, as on a command line, is an empty string.
const isGiven = (option) => option !== undefined && option !== null && option !== false;

class ReplicaSet {
  _ofMembers = new Map();

  // `options` may also be the address of a running set.
  constructor(options = {}) {
    if (typeof options === "string") return void this._attachToRunning(options);
    const { attachTo, ...rest } = options;
    this._options = rest;
    this.name = attachTo?.name ?? rest.name ?? jsTest.name();
    this.keyFile = rest.keyFile;
    this.nodes = [];
    if (attachTo !== undefined) this._attach(attachTo);
  }

  static started = new Set();

  _attachToRunning(address) {
    const seed = new Mongo(address);
    const { setName, hosts, passives = [] } = assert.commandWorked(seed.adminCommand({ hello: 1 }));
    seed.close();
    this._options = {};
    this.keyFile = undefined;
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
    this._mongods = this._members.map((member) => addressOf(`${member}.mongod`));
    this._connectToAll(this._members.map((member) => addressOf(`${member}.${daemon}`)));
  }

  _connectTo(address, index) {
    const node = new Mongo(address);
    Object.assign(node, { nodeId: index, replSetName: this.name });
    Object.defineProperty(node, "memberOf", { value: this });
    node.setSecondaryOk();
    return node;
  }

  // Start a set that the suite has created itself, or start the members of any set again.
  startSet(options = {}) {
    if (options.keyFile) this.keyFile = options.keyFile;
    if (this.nodes.length > 0) {
      if (this._servers) ReplicaSet.started.add(this);
      this.restartAll(options);
      return this.nodes;
    }
    this._beginStart(options);
    return this._finishStart();
  }

  _beginStart(options = {}) {
    const all = { ...this._options.nodeOptions, ...this._options, ...options };
    refuseOthers("ReplSetTest", all, OF_SETS);
    const count = typeof all.nodes === "number" ? all.nodes : Object.keys(all.nodes ?? { n0: {} }).length;
    this._daemon = isGiven(all.shardsvr) ? "shardd" : isGiven(all.configsvr) ? "configd" : "mongod";
    const { keyFile } = all;
    if (isKeyFile(keyFile)) this.keyFile = keyFile;
    const words = all.oplogSize ? ["--oplogSize", String(all.oplogSize)] : [];
    const parameters = parametersIn([this._options.nodeOptions, this._options, options]);
    this._servers = new OwnServers({ name: this.name, count, daemon: this._daemon, parameters, words, keyFile });
    this._configuration = configurationOf(all);
    this._mongods = this._servers.mongods;
    this._members = this._mongods.map((_, index) => `${this.name}.${index}`);
    this._addresses = this._servers.addresses;
  }

  _finishStart() {
    this._servers.finishStart();
    ReplicaSet.started.add(this);
    this._connectToAll(this._addresses);
    if (this._configuration !== null) this._configure(this._configuration);
    else if (this.nodes.length > 1) this.stepUp(0);
    return this.nodes;
  }

  // Give members their priorities, votes and tags, and the set its settings. The first member becomes primary, as in
  // the old shell. Only mongods know the configuration.
  _configure({ members, settings }) {
    if (members.length > 0) this.stepUp(0);
    const index = this.getNodeId(this.getPrimary());
    withMember(this._mongods[index], this._keyFileOf(index), (mongod) => reconfigure(mongod, members, settings));
    this.awaitReplication();
  }

  // A connection of this library's own to a node: to act as a member of the cluster, if the node has a key file. Suites
  // change the users of the connections in `nodes`.
  _asMember(node) {
    const index = this.getNodeId(node);
    const keyFile = this._keyFileOf(index);
    if (!isKeyFile(keyFile)) return this.nodes[index];
    const known = this._ofMembers.get(index);
    if (known !== undefined) return known;
    const connection = connectAsMember(this._addresses[index], keyFile);
    connection.setSecondaryOk();
    this._ofMembers.set(index, connection);
    return connection;
  }

  _keyFileOf(index) {
    return this._servers ? this._servers.keyFileOf(index) : this.keyFile;
  }

  _closeNode(index) {
    this.nodes[index].close();
    this._ofMembers.get(index)?.close();
    this._ofMembers.delete(index);
  }

  // The set is initiated when it starts, so only priorities, votes, tags and settings are applied.
  initiate(config) {
    this.getPrimary();
    if (config === undefined || config === null) return;
    if (config.members.length !== this.nodes.length) unsupported("a set with other members than its nodes");
    const members = config.members.map(({ _id, host: _, arbiterOnly, ...rest }) => {
      if (arbiterOnly) unsupported("a member of a set with arbiterOnly");
      return Object.fromEntries(Object.entries(rest).filter(([name]) => OF_MEMBER_CONFIGURATIONS.has(name)));
    });
    this._configure({ members, settings: {} });
  }

  getReplSetConfig() {
    return this.getReplSetConfigFromNode();
  }

  stopSet(signal = 15, forRestart = false) {
    this._members.forEach((_, index) => this.stop(index, signal ?? 15));
    if (!forRestart && ReplicaSet.started.delete(this)) this._disconnect();
  }

  _disconnect() {
    this.nodes.forEach((_, index) => this._closeNode(index));
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

function reconfigure(mongod, members, settings) {
  const rounds = [members.map(({ votes, hidden, ...rest }) => rest), ...votesOneByOne(members)];
  for (const round of rounds) {
    const { config } = assert.commandWorked(mongod.adminCommand({ replSetGetConfig: 1 }));
    config.members.forEach((member, index) => Object.assign(member, round[index]));
    Object.assign(config.settings, settings);
    config.version += 1;
    assert.commandWorked(mongod.adminCommand({ replSetReconfig: config }));
  }
}

// A configuration may change one vote at a time; members without priority may be hidden or lose their vote.
const votesOneByOne = (members) =>
  members.flatMap(({ votes, hidden }, index) =>
    votes === undefined && hidden === undefined
      ? []
      : [members.map((_, other) => (other === index ? definedOnly({ votes, hidden }) : {}))],
  );

const definedOnly = (fields) => Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));

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
