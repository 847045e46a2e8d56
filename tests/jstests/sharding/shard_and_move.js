/**
 * Shards a collection, splits it, moves a chunk, and checks placement in the catalog and on the shards themselves.
 * @tags: [requires_sharding]
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 2, mongos: 2 });
  const ns = "moves.things";
  const things = st.s.getCollection(ns);

  st.ensurePrimaryShard("moves", st.shard0.shardName);
  assert.eq(st.shard0.shardName, st.getPrimaryShardIdForDatabase("moves"));
  st.shardColl(things, { x: 1 }, false);
  assert.commandWorked(st.splitAt(ns, { x: 50 }));
  st.checkChunkCounts(ns, [2, 0]);

  for (let x = 0; x < 100; x++) assert.commandWorked(things.insert({ _id: x, x }));
  assert.commandWorked(st.moveChunk(ns, { x: 75 }, st.shard1));
  st.checkChunkCounts(ns, [1, 1]);
  assert.eq({ [st.shard0.shardName]: 1, [st.shard1.shardName]: 1 }, st.chunkCounts("things", "moves"));
  assert.eq(st.shard1, st.getShard(ns, { x: 75 }));
  assert.eq(st.shard0, st.getShard(ns, { x: 3 }));

  jsTestLog("Both routers see all documents, the stale one too");
  for (const mongos of [st.s0, st.s1]) {
    const seen = mongos.getCollection(ns).find().sort({ x: 1 }).toArray();
    assert.eq(100, seen.length);
    assert.eq(99, seen[99].x);
  }

  jsTestLog("A direct read of the recipient finds exactly what it owns");
  assert.eq(50, st.shard1.getCollection(ns).find().itcount());

  assert.commandFailedWithCode(
    st.s.adminCommand({ moveChunk: ns, find: { x: 1 }, to: "nowhere" }),
    ErrorCodes.ShardNotFound,
  );
  st.checkRoutingTableConsistency();
  st.checkUUIDsConsistentAcrossCluster();
  st.stop();
})();
