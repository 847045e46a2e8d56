/**
 * Another member of a shard becomes primary; routers find it, and acknowledged writes are there.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 1, rs: true });
  const ns = "failover.c";
  const coll = st.s.getCollection(ns);
  st.adminCommand({ enableSharding: "failover" });
  st.adminCommand({ shardCollection: ns, key: { _id: 1 } });
  assert.eq(3, st.rs0.nodes.length);
  for (let _id = 0; _id < 20; _id++) assert.commandWorked(coll.insert({ _id }, { writeConcern: { w: "majority" } }));

  const before = st.rs0.getPrimary();
  const next = st.rs0.getSecondary();
  st.rs0.stepUp(next);
  assert.eq(next.host, st.rs0.getPrimary().host);
  st.rs0.awaitNodesAgreeOnPrimary();
  assert.neq(before.host, st.rs0.getPrimary().host);

  assert.soonNoExcept(
    () => coll.insert({ _id: "after" }).nInserted === 1 || coll.count({ _id: "after" }) === 1,
    "a write at the new primary",
  );
  assert.eq(21, coll.find().itcount());

  st.rs0.awaitReplication();
  for (const node of st.rs0.getSecondaries()) {
    assert.eq(true, node.adminCommand({ hello: 1 }).secondary);
  }
  const fromSecondary = coll.find().readPref("secondary").readConcern("local");
  assert.eq(21, fromSecondary.itcount());
  st.stop();
})();
