// Upserts: what they insert, what they report, and that repeating them finds the document.
(function () {
  "use strict";

  const coll = db.upserts;
  coll.drop();

  let result = coll.update({ _id: 1, a: 5, b: { $gt: 3 } }, { $inc: { n: 1 }, $setOnInsert: { fresh: true } }, true);
  assert.eq(1, result.nUpserted);
  assert.docEq({ _id: 1, a: 5, n: 1, fresh: true }, coll.findOne());

  result = coll.update({ _id: 1 }, { $inc: { n: 1 }, $setOnInsert: { fresh: false } }, true);
  assert.eq([0, 1, 1], [result.nUpserted, result.nMatched, result.nModified]);
  assert.docEq({ _id: 1, a: 5, n: 2, fresh: true }, coll.findOne());

  result = coll.update({ a: 77 }, { a: 78 }, { upsert: true });
  assert(result.getUpsertedId()._id instanceof ObjectId);
  assert.eq(0, coll.count({ a: 77 }));

  const updated = coll.updateOne({ k: "new" }, { $set: { v: 1 } }, { upsert: true });
  assert.eq(0, updated.matchedCount);
  assert.eq(updated.upsertedId, coll.findOne({ k: "new" })._id);
  assert(!("upsertedId" in coll.updateOne({ k: "new" }, { $set: { v: 2 } }, { upsert: true })));

  const previous = coll.findAndModify({ query: { _id: "x" }, update: { $set: { y: 1 } }, upsert: true });
  assert.isnull(previous);
  assert.eq(
    { _id: "x", y: 2 },
    coll.findAndModify({ query: { _id: "x" }, update: { $inc: { y: 1 } }, new: true, upsert: true }),
  );

  const bulk = coll.initializeOrderedBulkOp();
  bulk
    .find({ _id: "p" })
    .upsert()
    .updateOne({ $set: { q: 1 } });
  bulk.find({ _id: "p" }).upsert().replaceOne({ r: 1 });
  result = bulk.execute();
  assert.eq([1, 1], [result.nUpserted, result.nMatched]);
  assert.eq({ index: 0, _id: "p" }, result.getUpsertedIdAt(0));
  assert.eq({ _id: "p", r: 1 }, coll.findOne({ _id: "p" }));
})();
