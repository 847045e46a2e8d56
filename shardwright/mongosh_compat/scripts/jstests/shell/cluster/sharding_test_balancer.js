"use strict";
// Methods of ShardingTest for the balancer, in addition to the helpers of `sh`.
const { assert } = require("../assert/assert.js");

const TIMEOUT_MS = 60_000;

module.exports = {
  isBalancerEnabled() {
    return assert.commandWorked(this.admin.runCommand({ balancerStatus: 1 })).mode !== "off";
  },

  isAnyBalanceInFlight() {
    return assert.commandWorked(this.admin.runCommand({ balancerStatus: 1 })).inBalancerRound;
  },

  // Wait until the balancer has made a round, as reported by the router of `connection` if given.
  awaitBalancerRound(timeout, connection = this.s0) {
    const roundsMade = () => {
      const status = assert.commandWorked(connection.adminCommand({ balancerStatus: 1 }));
      if (status.mode !== "full") throw new Error("Balancer is not enabled");
      return status.numBalancerRounds;
    };
    const before = roundsMade();
    assert.soon(() => roundsMade() !== before, "the balancer had no round", timeout || TIMEOUT_MS);
  },

  // Wait until no shard has two chunks more than another.
  awaitBalance(collection, database, timeout) {
    assert.soon(() => this.chunkDiff(collection, database) < 2, "no balance happened", timeout || TIMEOUT_MS);
  },

  waitForBalancer(isWanted, timeout = TIMEOUT_MS) {
    assert.soon(() => this.isBalancerEnabled() === isWanted, "the balancer is not as wanted", timeout);
  },
};
