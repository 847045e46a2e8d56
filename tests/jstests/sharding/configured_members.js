/**
 * Members of a ShardingTest's sets with their own priorities, votes and tags, and sets of different sizes.
 */
(function () {
  "use strict";

  const st = new ShardingTest({
    shards: { rs0: { nodes: [{}, { rsConfig: { priority: 0, votes: 0, tags: { use: "reports" } } }] } },
    configReplSetTestOptions: { settings: { chainingAllowed: false } },
  });
  const members = st.rs0.getReplSetConfigFromNode().members;
  assert.eq([1, 0], members.map((each) => each.priority), tojson(members));
  assert.eq([1, 0], members.map((each) => each.votes), tojson(members));
  assert.eq({ use: "reports" }, members[1].tags, tojson(members));
  assert.eq(false, st.configRS.getReplSetConfigFromNode().settings.chainingAllowed);
  assert.eq(st.rs0.nodes[0], st.rs0.getPrimary());

  const coll = st.s.getCollection("configured_members.c");
  assert.commandWorked(coll.insert({ _id: 1 }, { writeConcern: { w: 2 } }));
  assert.eq(1, coll.find().readPref("secondary", [{ use: "reports" }]).itcount());
  st.stop();

  const unequal = new ShardingTest({
    shards: { rs0: { nodes: 1, oplogSize: 50 }, rs1: { nodes: 2 } },
    other: { c1: { rsConfig: { priority: 0 } }, c2: { rsConfig: { priority: 0 } } },
  });
  const oplog = unequal.rs0.getPrimary().getDB("local").getCollection("oplog.rs").stats();
  assert.eq(50 * 1024 * 1024, oplog.maxSize);
  assert.eq([1, 0, 0], unequal.configRS.getReplSetConfigFromNode().members.map((each) => each.priority));
  const parameter = { getParameter: 1, periodicNoopIntervalSecs: 1 };
  assert.eq(1, assert.commandWorked(unequal.config2.adminCommand(parameter)).periodicNoopIntervalSecs);
  assert.eq([1, 2], [unequal.rs0.nodes.length, unequal.rs1.nodes.length]);
  assert.eq(2, unequal.config.shards.find().itcount());
  assert.commandWorked(unequal.s.getDB("test").c.insert({ _id: 1 }));
  unequal.restartMongos(0);
  assert.eq(1, unequal.s.getDB("test").c.find().itcount());
  unequal.stop();
})();
