"use strict";
// Methods of ReplSetTest that stop and start members: a mongod, and the daemon in front of it where there is one.
const { unsupported } = require("../errors.js");

const SIGNALS = { 2: "TERM", 9: "KILL", 15: "TERM" };

module.exports = {
  _processesOf(index) {
    if (this._directory === undefined) unsupported("processes of a ReplSetTest of a running set");
    const member = this._members[index];
    return this._daemon === "mongod" ? [`${member}.mongod`] : [`${member}.mongod`, `${member}.${this._daemon}`];
  },

  // `signal` is a number, by default that of an orderly end.
  stop(node, signal = 15) {
    const index = this.getNodeId(node);
    for (const name of this._processesOf(index).reverse()) {
      host.launcher.run(this._directory, ["kill", name, "--signal", SIGNALS[signal] ?? "TERM"]);
    }
    this.nodes[index].close();
    return 0;
  },

  start(node) {
    const index = this.getNodeId(node);
    for (const name of this._processesOf(index)) host.launcher.run(this._directory, ["restart", name]);
    this.nodes[index].close();
    this.nodes[index] = this._connectTo(this._addresses[index], index);
    return this.nodes[index];
  },

  restart(node) {
    return this.start(node);
  },

  restartAll() {
    this._members.forEach((_, index) => this.start(index));
    return this.getPrimary();
  },

  stopMaster(signal) {
    return this.stop(this.getPrimary(), signal);
  },

  stopPrimary(signal) {
    return this.stop(this.getPrimary(), signal);
  },
};
