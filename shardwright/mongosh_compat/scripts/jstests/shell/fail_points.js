"use strict";
// Fail points of servers.
const { assert } = require("./assert/assert.js");
const { DB } = require("./connection/database.js");

const kDefaultWaitForFailPointTimeout = 10 * 60 * 1000;

// Turn a fail point on; the result waits for it to be entered and turns it off.
// `connection` is a Mongo, or a database of one.
function configureFailPoint(connection, name, data = {}, mode = "alwaysOn") {
  const admin = connection instanceof DB ? connection.getSiblingDB("admin") : connection.getDB("admin");
  const { count } = assert.commandWorked(admin.runCommand({ configureFailPoint: name, mode, data }));
  return new FailPoint(admin, connection, name, count);
}

class FailPoint {
  constructor(admin, connection, name, timesEntered) {
    Object.assign(this, { conn: connection, failPointName: name, timesEntered });
    Object.defineProperty(this, "_admin", { value: admin });
  }

  _command({ maxTimeMS = kDefaultWaitForFailPointTimeout, timesEntered = 1 } = {}) {
    return { waitForFailPoint: this.failPointName, timesEntered: Number(this.timesEntered) + timesEntered, maxTimeMS };
  }

  // Wait until it has been entered this many times since it was turned on.
  wait(options) {
    assert.commandWorked(this._admin.runCommand(this._command(options)), `waiting for ${this.failPointName}`);
  }

  // Like `wait`; returns false on timeout.
  waitWithTimeout(timeout) {
    const reply = this._admin.runCommand(this._command({ maxTimeMS: timeout }));
    assert.commandWorkedOrFailedWithCode(reply, "MaxTimeMSExpired");
    return reply.ok === 1;
  }

  off() {
    return assert.commandWorked(this._admin.runCommand({ configureFailPoint: this.failPointName, mode: "off" }));
  }
}

// The same fail point on several servers.
function configureFailPointForRS(connections, name, data, mode) {
  const points = connections.map((each) => configureFailPoint(each, name, data, mode));
  return { conns: connections, failPointName: name, off: () => points.forEach((each) => each.off()) };
}

module.exports = { configureFailPoint, configureFailPointForRS, kDefaultWaitForFailPointTimeout };
