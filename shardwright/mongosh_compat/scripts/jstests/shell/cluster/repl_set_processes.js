"use strict";
// Methods of ReplSetTest that stop and start members: a mongod, and the daemon in front of it where there is one.
const { unsupported } = require("../errors.js");
const { parametersIn, setParameters } = require("./server_parameters.js");
const { refuseOthers } = require("./sharding_test_options.js");

const OF_RESTARTS = new Set([
  ...["setParameter", "keyFile", "oplogSize", "restart", "remember", "noCleanData", "waitForConnect", "waitPid"],
]);
const DAEMONS = { shardsvr: "shardd", configsvr: "configd" };
const SIGNALS = { 2: "TERM", 9: "KILL", 15: "TERM" };

module.exports = {
  _processesOf(index) {
    if (this._directory === undefined) unsupported("processes of a ReplSetTest of a running set");
    const member = this._members[index];
    return this._daemon === "mongod" ? [`${member}.mongod`] : [`${member}.mongod`, `${member}.${this._daemon}`];
  },

  // `signal` is a number, by default SIGTERM.
  stop(node, signal = 15) {
    if (Array.isArray(node)) return node.map((each) => this.stop(each, signal)).at(-1);
    const index = this.getNodeId(node);
    const number = SIGNALS[signal] === undefined ? 15 : signal;
    if (this._servers) this._servers.stop(index, number);
    else
      for (const name of this._processesOf(index).reverse())
        host.launcher.run(this._directory, ["kill", name, "--signal", SIGNALS[number]]);
    this._closeNode(index);
    return 0;
  },

  start(node, options) {
    if (Array.isArray(node)) return node.map((each) => this.start(each, options));
    refuseOthers("a restarted member", options, OF_RESTARTS);
    for (const [option, daemon] of Object.entries(DAEMONS)) {
      const isGiven = ![undefined, null, false].includes(options?.[option]);
      if (isGiven && this._daemon !== daemon) unsupported(`a restarted member with ${option}`);
    }
    if (options?.keyFile && !this._servers) unsupported("a restarted member with a key file");
    const index = this.getNodeId(node);
    if (this._servers) this._servers.start(index, options ?? {});
    else for (const name of this._processesOf(index)) host.launcher.run(this._directory, ["restart", name]);
    this._closeNode(index);
    this.nodes[index] = this._connectTo(this._addresses[index], index);
    setParameters(this._asMember(index), parametersIn([options]), "restarted members");
    return this.nodes[index];
  },

  // A member that still runs is stopped first.
  restart(node, options, signal) {
    if (Array.isArray(node)) return node.map((each) => this.restart(each, options, signal));
    if (this._servers) this.stop(node, signal);
    return this.start(node, options);
  },

  restartAll(options) {
    this._members.forEach((_, index) => this.restart(index, options));
    return this.getPrimary();
  },

  // Members cannot change after the start.
  add: () => unsupported("ReplSetTest.add"),
  remove: () => unsupported("ReplSetTest.remove"),
  reInitiate: () => unsupported("ReplSetTest.reInitiate"),

  stopMaster(signal) {
    return this.stop(this.getPrimary(), signal);
  },

  stopPrimary(signal) {
    return this.stop(this.getPrimary(), signal);
  },
};
