"use strict";
// Methods of ReplSetTest: the primary, and the members' states and replication progress.
const { assert } = require("../assert/assert.js");
const { bsonWoCompare } = require("../bson_order.js");
const { isNetworkError } = require("../errors.js");
const { tojson } = require("../tojson.js");

const TIMEOUT_MS = 60_000;
const SECONDARY = 2;

// A member's reply to hello; null if it does not answer.
function helloOf(node) {
  try {
    return node.adminCommand({ hello: 1 });
  } catch (error) {
    if (isNetworkError(error)) return null;
    throw error;
  }
}

module.exports = {
  getPrimary(timeout = TIMEOUT_MS) {
    let primary;
    assert.soon(
      () => (primary = this.nodes.find((each) => helloOf(each)?.isWritablePrimary)),
      `${this.name} has no primary`,
      timeout,
    );
    return primary;
  },

  getSecondaries(timeout = TIMEOUT_MS) {
    const primary = this.getPrimary(timeout);
    return this.nodes.filter((each) => each !== primary);
  },

  getSecondary(timeout) {
    return this.getSecondaries(timeout)[0];
  },

  awaitSecondaryNodes(timeout = TIMEOUT_MS, nodes) {
    const all = nodes ?? this.getSecondaries(timeout);
    assert.soon(
      () => all.every((each) => helloOf(each)?.secondary),
      `not all of ${this.name} are secondaries`,
      timeout,
    );
  },

  awaitNodesAgreeOnPrimary(timeout = TIMEOUT_MS, nodes = this.nodes) {
    const opinions = () => new Set(nodes.map((each) => helloOf(each)?.primary ?? null));
    assert.soon(
      () => opinions().size === 1 && !opinions().has(null),
      `${this.name} does not agree on a primary`,
      timeout,
    );
    return this.getPrimary(timeout);
  },

  awaitNodesAgreeOnPrimaryNoAuth(...parameters) {
    return this.awaitNodesAgreeOnPrimary(...parameters);
  },

  awaitNoPrimary(message = `${this.name} still has a primary`, timeout = TIMEOUT_MS) {
    assert.soon(() => !this.nodes.some((each) => helloOf(each)?.isWritablePrimary), message, timeout);
  },

  waitForPrimary(timeout) {
    return this.getPrimary(timeout);
  },

  status(timeout) {
    return assert.commandWorked(this._asMember(this.getPrimary(timeout)).adminCommand({ replSetGetStatus: 1 }));
  },

  getReplSetConfigFromNode(index) {
    const node = index === undefined ? this.getPrimary() : this.nodes[this.getNodeId(index)];
    return assert.commandWorked(this._asMember(node).adminCommand({ replSetGetConfig: 1 })).config;
  },

  // Wait until a member, or each of several, is in a state, a number of ReplSetTest.State.
  waitForState(node, states, timeout = TIMEOUT_MS) {
    if (Array.isArray(node)) return void node.forEach((each) => this.waitForState(each, states, timeout));
    const target = this.nodes[this.getNodeId(node)];
    const wanted = [states].flat();
    const stateOf = () => {
      const hello = helloOf(target);
      if (hello === null) return 8;
      return hello.isWritablePrimary ? 1 : hello.secondary ? SECONDARY : 3;
    };
    assert.soon(
      () => wanted.includes(stateOf()),
      () => `${target.host} is not in state ${tojson(wanted)}`,
      timeout,
    );
  },

  // Wait until every member has caught up with the primary.
  awaitReplication(timeout = TIMEOUT_MS, type, nodes) {
    const target = this._lastOpTimes().appliedOpTime;
    const isBehind = (node) => bsonWoCompare(appliedOpTimeOf(this._asMember(node)), target.ts) < 0;
    const behind = () => (nodes ?? this.nodes).filter(isBehind);
    assert.soonNoExcept(
      () => behind().length === 0,
      () => `${this.name} has not replicated`,
      timeout,
    );
  },

  awaitLastOpCommitted(timeout = TIMEOUT_MS) {
    const target = this._lastOpTimes().appliedOpTime;
    const isCommitted = () => bsonWoCompare(this._lastOpTimes().lastCommittedOpTime.ts, target.ts) >= 0;
    assert.soonNoExcept(isCommitted, `${this.name} has not committed its last operation`, timeout);
    return target;
  },

  awaitNodesAgreeOnAppliedOpTime(timeout, nodes) {
    this.awaitReplication(timeout, undefined, nodes);
  },

  waitForConfigReplication(primary = this.getPrimary(), nodes) {
    const versionAt = (node) =>
      assert.commandWorked(this._asMember(node).adminCommand({ replSetGetConfig: 1 })).config.version;
    const version = versionAt(primary);
    const isInstalled = (node) => versionAt(node) === version;
    const isReplicated = () => (nodes ?? this.nodes).every(isInstalled);
    assert.soonNoExcept(isReplicated, `${this.name} has not replicated its configuration`, TIMEOUT_MS);
  },

  // The hashes of a database on all members.
  getHashes(database, secondaries = this.getSecondaries()) {
    const hashOf = (node) => assert.commandWorked(this._asMember(node).getDB(database).runCommand({ dbHash: 1 }));
    return { primary: hashOf(this.getPrimary()), secondaries: secondaries.map(hashOf) };
  },

  // The entries of a member's oplog that match, the newest first.
  findOplog(node, query = {}, limit = 0) {
    return node.getDB("local").getCollection("oplog.rs").find(query).sort({ $natural: -1 }).limit(limit);
  },

  dumpOplog(node, query, limit = 10) {
    this.findOplog(node, query, limit).forEach((each) => host.write(`${tojson(each, "", true)}\n`));
  },

  awaitLastStableRecoveryTimestamp() {
    this.awaitLastOpCommitted();
  },

  _lastOpTimes() {
    return assert.commandWorked(this._asMember(this.getPrimary()).adminCommand({ replSetGetStatus: 1 })).optimes;
  },

  // Make a member primary.
  stepUp(node, { awaitReplicationBeforeStepUp = true } = {}) {
    const target = this.nodes[this.getNodeId(node)];
    if (awaitReplicationBeforeStepUp) this.awaitReplication();
    const isPrimary = () => helloOf(target)?.isWritablePrimary;
    assert.soonNoExcept(
      () => isPrimary() || this._asMember(target).adminCommand({ replSetStepUp: 1 }).ok === 1,
      `${target.host} cannot step up`,
      TIMEOUT_MS,
    );
    assert.soon(isPrimary, `${target.host} is not primary after stepping up`, TIMEOUT_MS);
    return target;
  },

  stepUpNoAwaitReplication(node) {
    return this.stepUp(node, { awaitReplicationBeforeStepUp: false });
  },

  freeze(node, seconds = 24 * 60 * 60) {
    const target = this.nodes[this.getNodeId(node)];
    assert.soonNoExcept(
      () => this._asMember(target).adminCommand({ replSetFreeze: seconds }).ok === 1,
      `${target.host} cannot be frozen`,
      TIMEOUT_MS,
    );
  },

  unfreeze(node) {
    assert.commandWorked(this._asMember(node).adminCommand({ replSetFreeze: 0 }));
  },
};

function appliedOpTimeOf(node) {
  return assert.commandWorked(node.adminCommand({ replSetGetStatus: 1 })).optimes.appliedOpTime.ts;
}
