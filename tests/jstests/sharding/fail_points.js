/**
 * A move that waits at a fail point of its donor: writes go on meanwhile, and it ends when the fail point is off.
 */
(function () {
  "use strict";

  load("jstests/libs/fail_point_util.js");
  load("jstests/libs/chunk_manipulation_util.js");

  const st = new ShardingTest({ shards: 2 });
  const ns = "fail_points.c";
  const coll = st.s.getCollection(ns);
  st.ensurePrimaryShard("fail_points", st.shard0.shardName);
  st.adminCommand({ shardCollection: ns, key: { _id: 1 } });
  assert.commandWorked(st.splitAt(ns, { _id: 0 }));
  for (let _id = -5; _id < 5; _id++) assert.commandWorked(coll.insert({ _id }));

  const donor = st.rs0.getPrimary();
  assert.commandFailedWithCode(
    donor.adminCommand({ configureFailPoint: "noSuchFailPoint", mode: "alwaysOn" }),
    ErrorCodes.FailPointSetFailed,
  );

  const point = configureFailPoint(donor, "moveChunkHangAtStep4");
  const awaitMove = moveChunkParallel(null, st.s.host, { _id: 1 }, null, ns, st.shard1.shardName);
  point.wait();
  assert.commandWorked(coll.insert({ _id: 100, during: true }));
  assert.eq(1, coll.update({ _id: 1 }, { $set: { changed: true } }).nModified);
  assert.eq(1, coll.remove({ _id: 2 }).nRemoved);
  assert.eq(st.shard0.shardName, st.getShard(ns, { _id: 1 }).shardName, "not moved yet");
  point.off();
  awaitMove();

  assert.eq(st.shard1.shardName, st.getShard(ns, { _id: 1 }).shardName);
  assert.eq({ _id: 1, changed: true }, coll.findOne({ _id: 1 }));
  assert.sameMembers(
    [0, 1, 3, 4, 100],
    st.shard1
      .getCollection(ns)
      .find()
      .map((each) => each._id),
  );
  assert.eq(10, coll.find().itcount());
  st.stop();
})();
