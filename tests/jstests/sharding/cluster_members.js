/**
 * What ShardingTest calls its servers, and the parameters that a suite gives them.
 */
(function () {
  "use strict";

  const st = new ShardingTest({
    shards: 2,
    mongos: [{ setParameter: { cursorTimeoutMillis: 5000 } }, {}],
    mongosOptions: { setParameter: "userCacheInvalidationIntervalSecs=7" },
    config: 1,
  });
  assert.eq("config", st.config0.getDB("admin").hello().setName);
  assert.eq(st.config0, st.c0);
  assert.eq(st.s, st.s0);
  assert.eq(2, st.config0.getDB("config").shards.find().itcount());
  assert.eq(st.rs1, st.getRSEntry(st.shard1.shardName).test);
  assert.throws(() => st.getRSEntry("nowhere"));

  const coll = st.s.getCollection("cluster_members.c");
  st.ensurePrimaryShard("cluster_members", st.shard0.shardName);
  assert(!st.isSharded(coll));
  assert.commandWorked(coll.insert([{ _id: -1 }, { _id: 1 }, { _id: 2 }]));
  st.checkShardCounts(coll, [3, 0]);
  st.shardColl(coll, { _id: 1 }, { _id: 0 }, { _id: 0 });
  assert(st.isSharded(coll));
  st.checkShardCounts(coll, [1, 2]);
  assert.throws(() => st.checkShardCounts(coll, [2, 1]));
  assert.eq([1, 2], st.shardCounts("cluster_members", "c"));
  assert.eq(2, st.onNumShards("cluster_members", "c"));

  jsTestLog("Parameters of routers, also after a restart");
  const parameter = (router, name) =>
    assert.commandWorked(router.adminCommand({ getParameter: 1, [name]: 1 }))[name];
  const found = () => [st.s0, st.s1].map((each) => parameter(each, "cursorTimeoutMillis"));
  assert.eq([5000, 600000], found());
  assert.eq(7, parameter(st.s1, "userCacheInvalidationIntervalSecs"));
  st.restartMongos(0);
  assert.eq([5000, 600000], found());
  st.restartMongos(1, { setParameter: { cursorTimeoutMillis: 8000 } });
  assert.eq([5000, 8000], found());
  st.stop();
})();
