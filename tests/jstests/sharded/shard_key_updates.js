// Updates and deletes on a sharded collection: what needs the shard key, and documents that change shards.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("shard_key_updates.items", { k: 1 }, { k: 0 });
  for (const k of [-2, -1, 0, 1]) assert.commandWorked(coll.insert({ _id: k, k, v: 0 }));

  assert.eq(1, coll.update({ k: -1 }, { $inc: { v: 1 } }).nModified);
  assert.eq(4, coll.update({}, { $inc: { v: 1 } }, { multi: true }).nModified, "on both shards");
  assert.eq(1, coll.update({ _id: 1 }, { $set: { byId: true } }).nModified, "the whole _id finds one document");
  assert.writeErrorWithCode(coll.update({ v: 1 }, { $set: { w: 1 } }), ErrorCodes.InvalidOptions);
  assert.writeErrorWithCode(coll.remove({ v: 1 }, true), ErrorCodes.ShardKeyNotFound);
  assert.writeErrorWithCode(coll.update({ v: 77 }, { $set: { w: 1 } }, { upsert: true }), ErrorCodes.ShardKeyNotFound);
  assert.throwsWithCode(
    () => coll.findAndModify({ query: { v: 1 }, update: { $set: { w: 1 } } }),
    ErrorCodes.ShardKeyNotFound,
  );

  const upserted = coll.update({ k: 50 }, { $set: { v: 9 } }, { upsert: true });
  assert.eq(1, upserted.nUpserted);
  assert.eq(1, coll.remove({ k: 50 }, true).nRemoved);
  assert.eq(2, coll.remove({ k: { $gte: 0 } }).nRemoved);
  assert.eq(2, coll.count());

  assert.commandWorked(coll.insert({ _id: "no key" }));
  assert.eq(1, coll.find({ k: null }).itcount(), "a missing key counts as null");
  assert.writeErrorWithCode(coll.insert({ k: [1, 2] }), ErrorCodes.ShardKeyNotFound);
})();
