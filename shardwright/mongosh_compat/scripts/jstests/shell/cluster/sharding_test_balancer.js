"use strict";
// Methods of ShardingTest for the balancer.
const { assert } = require("../assert/assert.js");

const ROUND_TIMEOUT_MS = 60_000;

module.exports = {
  startBalancer(timeout = ROUND_TIMEOUT_MS) {
    return assert.commandWorked(this.admin.runCommand({ balancerStart: 1, maxTimeMS: timeout }));
  },

  stopBalancer(timeout = ROUND_TIMEOUT_MS) {
    return assert.commandWorked(this.admin.runCommand({ balancerStop: 1, maxTimeMS: timeout }));
  },

  isBalancerEnabled() {
    return assert.commandWorked(this.admin.runCommand({ balancerStatus: 1 })).mode !== "off";
  },

  isAnyBalanceInFlight() {
    return assert.commandWorked(this.admin.runCommand({ balancerStatus: 1 })).inBalancerRound;
  },

  awaitBalancerRound(timeout = ROUND_TIMEOUT_MS) {
    const rounds = () => assert.commandWorked(this.admin.runCommand({ balancerStatus: 1 })).numBalancerRounds;
    const before = rounds();
    assert.soon(() => rounds() > before, "the balancer had no round", timeout);
  },

  // Wait until no shard has more than `difference` chunks more than another.
  awaitBalance(collection, database, timeout = ROUND_TIMEOUT_MS, difference = 1) {
    assert.soon(() => this.chunkDiff(collection, database) <= difference, `${collection} is not balanced`, timeout);
  },

  waitForBalancer(isWanted, timeout = ROUND_TIMEOUT_MS) {
    assert.soon(() => this.isBalancerEnabled() === isWanted, "the balancer is not as wanted", timeout);
  },

  disableBalancing(namespace) {
    const name = namespace.getFullName ? namespace.getFullName() : namespace;
    return this.config.collections.update({ _id: name }, { $set: { noBalance: true } });
  },
};
