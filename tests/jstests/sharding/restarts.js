/**
 * Routers, shards and config servers are stopped and started again; nothing is lost.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 2, mongos: 2, config: 1 });
  const ns = "restarts.c";
  st.ensurePrimaryShard("restarts", st.shard0.shardName);
  st.shardColl("c", { k: 1 }, { k: 0 }, { k: 0 }, "restarts");
  const documents = [];
  for (let k = -50; k < 50; k++) documents.push({ _id: k, k });
  assert.commandWorked(st.s.getCollection(ns).insert(documents));

  jsTestLog("A router");
  st.stopMongos(1);
  const error = assert.throws(() => st.s1.getCollection(ns).findOne());
  assert(isNetworkError(error), () => `${error}`);
  st.restartMongos(1);
  assert.eq(100, st.s1.getCollection(ns).find().itcount());

  jsTestLog("A shard");
  st.rs1.stop(0);
  assert.eq(
    50,
    st.s
      .getCollection(ns)
      .find({ k: { $lt: 0 } })
      .itcount(),
    "the other shard goes on",
  );
  st.rs1.start(0);
  st.rs1.getPrimary();
  assert.soonNoExcept(() => st.s.getCollection(ns).find().itcount() === 100, "both shards again");

  jsTestLog("The config server");
  st.configRS.restart(0);
  st.configRS.getPrimary();
  assert.soonNoExcept(() => st.s.adminCommand({ split: ns, middle: { k: 25 } }).ok === 1, "a split after the restart");
  st.checkRoutingTableConsistency();
  st.stop();
})();
