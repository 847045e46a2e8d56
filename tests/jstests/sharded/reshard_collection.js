// Resharding: another shard key, with the same documents and indexes.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const ns = "reshard_collection.c";
  const coll = newCollectionInHalves(ns, { k: 1 }, { k: 0 });
  const config = db.getSiblingDB("config");
  const documents = [];
  for (let k = -100; k < 100; k++) documents.push({ _id: k, k, a: Math.abs(k), b: k % 7 });
  assert.commandWorked(coll.insert(documents));
  assert.commandWorked(coll.createIndex({ b: 1 }));
  const before = config.collections.findOne({ _id: ns });

  assert.commandWorked(db.adminCommand({ reshardCollection: ns, key: { a: 1 }, numInitialChunks: 2 }));
  const after = config.collections.findOne({ _id: ns });
  assert.eq({ a: 1 }, after.key);
  assert.neq(before.uuid, after.uuid, "it is another collection");
  assert.neq(before.lastmodEpoch, after.lastmodEpoch);
  assert.eq(0, config.chunks.count({ uuid: before.uuid }));
  assert(!("reshardingFields" in after));

  assert.eq(documents, coll.find().sort({ _id: 1 }).toArray());
  const keys = coll.getIndexes().map((each) => each.key);
  for (const key of [{ _id: 1 }, { a: 1 }, { b: 1 }]) assert.contains(key, keys);
  const asked = (query) => coll.find(query).explain().queryPlanner.winningPlan.shards.length;
  assert.eq(1, asked({ a: 5 }));
  assert.eq(2, coll.find({ a: 5 }).itcount());

  jsTestLog("Writes go by the new key");
  assert.commandWorked(coll.insert({ _id: "new", a: 1000 }));
  assert.eq(1, coll.remove({ a: 1000 }).nRemoved);

  jsTestLog("What is refused");
  assert.commandWorked(coll.getDB().plain.insert({ a: 1 }));
  assert.commandFailedWithCode(
    db.adminCommand({ reshardCollection: "reshard_collection.plain", key: { a: 1 } }),
    ErrorCodes.NamespaceNotSharded,
  );
  assert.commandFailed(db.adminCommand({ reshardCollection: ns, key: {} }));
  assert.commandFailedWithCode(db.runCommand({ reshardCollection: ns, key: { b: 1 } }), ErrorCodes.Unauthorized);
  assert.commandFailedWithCode(db.adminCommand({ abortReshardCollection: ns }), ErrorCodes.NoSuchReshardCollection);
  assert.eq({ a: 1 }, config.collections.findOne({ _id: ns }).key);
})();
