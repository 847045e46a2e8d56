/**
 * A ShardingTest has the helpers of `sh`, on its own cluster; both return replies as they are.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 2, other: { enableAutoSplit: false } });
  const ns = "helpers.c";
  assert.commandWorked(st.enableSharding("helpers", st.shard0.shardName));
  assert.commandWorked(st.shardCollection(ns, { k: 1 }));
  const coll = st.s.getCollection(ns);
  for (let k = -10; k < 10; k++) assert.commandWorked(coll.insert({ k }));

  jsTestLog("Replies of failed commands are returned");
  assert(/is not valid for shard key/.test(assert.commandFailed(st.splitAt(ns, { other: 1 })).errmsg));
  assert.commandFailedWithCode(st.moveChunk(ns, { k: 1 }, "nowhere"), ErrorCodes.ShardNotFound);
  assert.throws(() => st.splitAt("helpers", { k: 0 }), [], "a name without a collection");

  jsTestLog("Splits, moves and zones");
  assert.commandWorked(st.splitAt(ns, { k: 0 }));
  assert.commandWorked(st.moveChunk(ns, { k: 5 }, st.shard1.shardName));
  st.checkOrphansAreDeleted();
  assert.eq([10, 10], st.shardCounts("helpers", "c"));
  assert.eq(2, st.onNumShards("helpers", "c"));
  assert.eq(st.shard1.shardName, st.getShard(coll, { k: 5 }).shardName);
  assert.eq(2, st.getShardsForQuery(ns, { k: { $exists: true } }).length);
  assert.eq(0, st.getShardsForQuery(coll, { k: 100 }).length, "no shard has such documents");
  assert.eq(1, st.getShardsForQuery(coll, { k: 100 }, true).length, "one is asked");
  assert.eq(ns, st._lastMigration(coll).ns);
  assert.commandWorked(st.addShardTag(st.shard1.shardName, "high"));
  assert.commandWorked(st.updateZoneKeyRange(ns, { k: 0 }, { k: MaxKey }, "high"));
  assert.eq(1, st.config.tags.find({ ns }).itcount());
  assert.commandWorked(st.removeRangeFromZone(ns, { k: 0 }, { k: MaxKey }));
  assert.eq(0, st.config.tags.find({ ns }).itcount());
  assert.commandWorked(st.removeShardFromZone(st.shard1.shardName, "high"));

  const lines = st.getChunksString(ns).trim().split("\n");
  assert.eq(2, lines.length, st.getChunksString(ns));
  assert(/2\|\d\t\{.*-> \{.*shard1 {2}helpers\.c$/.test(lines[1]), lines[1]);

  jsTestLog("Settings");
  assert(!st.getBalancerState() && !st.isBalancerRunning() && !st.getShouldAutoSplit());
  st.enableAutoSplit();
  assert.eq(true, st.config.settings.findOne({ _id: "autosplit" }).enabled);
  st.disableBalancing(coll);
  assert.eq(true, st.config.collections.findOne({ _id: ns }).noBalance);
  st.enableBalancing(coll);
  st.startBalancer();
  assert(st.getBalancerState());
  st.awaitBalancerRound();
  st.awaitCollectionBalance(coll);
  st.verifyCollectionIsBalanced(coll);
  assert.eq(0, st.getRecentFailedRounds().count);
  assert.eq("Success", st.getRecentMigrations()[0]._id);

  jsTestLog("The global sh");
  globalThis.db = st.getDB("test");
  sh._checkMongos();
  assert.eq(ns, sh._lastMigration(ns).ns);
  assert.eq("1.5MiB", sh._dataFormat(1.5 * 1024 * 1024));
  assert.eq(false, sh.setBalancerState(false).mode === "full");
  st.stop();
})();
