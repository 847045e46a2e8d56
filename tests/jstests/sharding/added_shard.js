/**
 * A cluster without shards, to which a suite adds replica sets of shard servers that it starts itself.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 1, manualAddShard: true });
  const coll = st.s.getCollection("added_shard.c");
  assert.eq(0, st.config.shards.find().itcount());
  assert.commandFailedWithCode(coll.insert({ _id: 0 }), ErrorCodes.ShardNotFound);
  for (const [database, collection, stage] of [
    ["added_shard", "c", { $match: {} }],
    ["added_shard", "c", { $changeStream: {} }],
    ["added_shard", 1, { $changeStream: {} }],
    ["admin", 1, { $changeStream: { allChangesForCluster: true } }],
    ["admin", 1, { $currentOp: {} }],
  ]) {
    const command = { aggregate: collection, pipeline: [stage], cursor: {} };
    const { cursor } = assert.commandWorked(st.s.getDB(database).runCommand(command), tojson(command));
    assert.eq([0, []], [Number(cursor.id), cursor.firstBatch], tojson(command));
  }
  assert.commandWorked(st.s.adminCommand({ addShard: st.shard0.host }));

  const nodes = [{}, { rsConfig: { priority: 0 } }];
  const added = new ReplSetTest({ name: "added", nodes, nodeOptions: { shardsvr: "" } });
  added.startSet({ oplogSize: 50 });
  added.initiate();
  assert.eq([1, 0], added.getReplSetConfig().members.map((each) => each.priority));
  assert.commandWorked(st.s.adminCommand({ addShard: added.getURL(), name: "another" }));

  st.ensurePrimaryShard("added_shard", st.shard0.shardName);
  st.shardColl(coll, { _id: 1 }, { _id: 2 }, false);
  assert.commandWorked(coll.insert([{ _id: 1 }, { _id: 2 }]));
  assert.commandWorked(st.s.adminCommand({ moveChunk: coll.getFullName(), find: { _id: 2 }, to: "another" }));
  assert.eq(1, added.getPrimary().getCollection(coll.getFullName()).find().itcount());

  added.stopSet(undefined, true);
  assert.throws(() => added.getPrimary(1000));
  added.startSet({ restart: true });
  assert.soonNoExcept(() => coll.find().itcount() === 2);

  const another = MongoRunner.runMongos({ configdb: st.configRS.getURL() });
  assert.eq(2, another.getCollection(coll.getFullName()).find().itcount());
  MongoRunner.stopMongos(another);
  st.stop();
  added.stopSet();
})();
