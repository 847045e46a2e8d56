/**
 * Databases and their primary shards: unsharded collections are on it, and the helpers that ask.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 3 });
  assert.eq(3, st.getShardNames().length);
  st.ensurePrimaryShard("home", st.shard2.shardName);
  assert.eq(st.shard2, st.getPrimaryShard("home"));
  assert.eq(2, st.getNonPrimaries("home").length);
  assert.neq(st.shard2.shardName, st.getOther(st.shard2).shardName);
  assert.neq(st.shard0.shardName, st.getAnother(st.shard0).shardName);

  const home = st.getDB("home");
  assert.commandWorked(home.plain.insert({ _id: 1 }));
  assert.eq(1, st.shard2.getDB("home").plain.find().itcount());
  assert.eq(0, st.shard0.getDB("home").plain.find().itcount());
  assert.eq(1, st.onNumShards("home", "plain"));

  st.adminCommand({ shardCollection: "home.spread", key: { _id: "hashed" } });
  for (let _id = 0; _id < 60; _id++) assert.commandWorked(home.spread.insert({ _id }));
  assert.eq(3, st.onNumShards("home", "spread"));
  assert.eq(60, Array.sum(st.shardCounts("home", "spread")));
  assert.lte(st.chunkDiff("spread", "home"), 1);

  st.printShardingStatus();
  st.printChunks("home.spread");
  assert.commandFailedWithCode(
    st.s.adminCommand({ enableSharding: "home", primaryShard: st.shard0.shardName }),
    ErrorCodes.NamespaceExists,
  );
  assert.throws(() => st.adminCommand({ noSuchCommand: 1 }));
  st.checkUUIDsConsistentAcrossCluster();
  st.checkIndexesConsistentAcrossCluster("home");
  st.stop();
})();
