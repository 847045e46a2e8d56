/**
 * Routers that know an old placement: each kind of operation finds the new one by itself.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 2, mongos: 2, shardOptions: { setParameter: { orphanCleanupDelaySecs: 0 } } });
  const ns = "stale.c";
  const fresh = st.s0.getCollection(ns);
  const stale = st.s1.getCollection(ns);
  st.ensurePrimaryShard("stale", st.shard0.shardName);
  st.shardColl(fresh, { k: 1 }, { k: 0 }, false);
  for (let k = -10; k < 10; k++) assert.commandWorked(fresh.insert({ _id: k, k }));

  let on = 0;
  const moveAway = () => assert.commandWorked(st.moveChunk(ns, { k: 0 }, [st.shard1, st.shard0][on++ % 2]));
  const operations = {
    find: () => assert.eq(10, stale.find({ k: { $gte: 0 } }).itcount()),
    count: () => assert.eq(20, stale.find().itcount()),
    insert: () => assert.commandWorked(stale.insert({ _id: 1000 + on, k: 1000 + on })),
    update: () => assert.eq(1, stale.update({ k: 5 }, { $inc: { n: 1 } }).nModified),
    remove: () =>
      assert.eq(1, stale.remove({ k: 1000 + on - 2 }).nRemoved + stale.remove({ k: { $gte: 1000 } }).nRemoved),
    findAndModify: () => assert.eq(5, stale.findAndModify({ query: { k: 5 }, update: { $inc: { n: 1 } } }).k),
    distinct: () => assert.eq(10, stale.distinct("k", { k: { $gte: 0 } }).length),
    aggregate: () => assert.eq(10, stale.aggregate([{ $match: { k: { $gte: 0 } } }]).itcount()),
  };
  for (const [name, operation] of Object.entries(operations)) {
    assert.eq(
      20,
      stale.find().itcount() - stale.find({ k: { $gte: 1000 } }).itcount(),
      "the router knows the placement",
    );
    moveAway();
    jsTestLog(`${name} with a stale router`);
    operation();
  }
  st.checkOrphansAreDeleted();
  assert.eq(20, st.shard0.getCollection(ns).find().itcount() + st.shard1.getCollection(ns).find().itcount());
  st.stop();
})();
