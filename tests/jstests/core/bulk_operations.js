// Ordered and unordered bulk operations, and their errors.
(function () {
  "use strict";

  const coll = db.bulk_operations;
  coll.drop();

  let bulk = coll.initializeOrderedBulkOp();
  for (let i = 0; i < 250; i++) bulk.insert({ _id: i, group: i % 5 });
  bulk.find({ group: 1 }).update({ $set: { seen: true } });
  bulk.find({ group: 2 }).removeOne();
  bulk.find({ group: 3 }).remove();
  assert.eq([250, 1, 2], [bulk.nInsertOps, bulk.nUpdateOps, bulk.nRemoveOps]);
  let result = bulk.execute();
  assert.eq([250, 50, 50, 51], [result.nInserted, result.nMatched, result.nModified, result.nRemoved]);
  assert.throws(() => bulk.execute(), [], "a bulk runs once");
  assert.eq(199, coll.count());

  jsTestLog("An ordered bulk ends at its first error");
  bulk = coll.initializeOrderedBulkOp();
  bulk.insert({ _id: "a" });
  bulk.insert({ _id: 0 });
  bulk.insert({ _id: "b" });
  const ordered = assert.throws(() => bulk.execute());
  assert(ordered instanceof BulkWriteError);
  assert.eq(1, ordered.getWriteErrorCount());
  assert.eq(1, ordered.getWriteErrorAt(0).index);
  assert.eq(ErrorCodes.DuplicateKey, ordered.code);
  assert.eq(1, ordered.toResult().nInserted);
  assert.eq(0, coll.count({ _id: "b" }));

  jsTestLog("An unordered bulk goes on");
  bulk = coll.initializeUnorderedBulkOp();
  for (const _id of [0, "c", 1, "d"]) bulk.insert({ _id });
  const unordered = assert.throws(() => bulk.execute());
  assert.eq(
    [0, 2],
    unordered
      .getWriteErrors()
      .map((each) => each.index)
      .sort(),
  );
  assert.eq(2, coll.count({ _id: { $in: ["c", "d"] } }));

  result = coll.bulkWrite([
    { insertOne: { document: { _id: "e" } } },
    { updateMany: { filter: { group: 4 }, update: { $set: { group: 40 } } } },
    { replaceOne: { filter: { _id: "f" }, replacement: { v: 1 }, upsert: true } },
    { deleteOne: { filter: { _id: "c" } } },
  ]);
  assert.eq([1, 50, 1, 1], [result.insertedCount, result.matchedCount, result.upsertedCount, result.deletedCount]);
  assert.eq({ 2: "f" }, result.upsertedIds);

  const mixed = coll.insert([{ _id: "g" }, { _id: "g" }, { _id: "h" }], { ordered: false });
  assert(mixed instanceof BulkWriteResult);
  assert.eq(2, mixed.nInserted);
  assert(mixed.hasWriteErrors());
})();
