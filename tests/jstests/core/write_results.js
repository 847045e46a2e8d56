// What legacy writes return, and what the CRUD methods throw.
(function () {
  "use strict";

  const coll = db.write_results;
  coll.drop();

  let result = coll.update({ _id: 1 }, { $set: { a: 1 } });
  assert.writeOK(result);
  assert.eq([0, 0, 0], [result.nMatched, result.nModified, result.nUpserted]);

  result = coll.update({ _id: 1 }, { $set: { a: 1 } }, { upsert: true });
  assert.eq(1, result.nUpserted);
  assert.eq(1, result.getUpsertedId()._id);

  result = coll.update({ _id: 1 }, { $set: { a: 1 } });
  assert.eq([1, 0], [result.nMatched, result.nModified], "nothing to change");

  result = coll.save({ _id: 1, a: 2 });
  assert.eq([1, 1], [result.nMatched, result.nModified]);
  assert.eq(1, coll.save({ a: 3 }).nInserted);

  result = coll.update({}, { $badOperator: 1 });
  assert(result.hasWriteError());
  assert.eq(ErrorCodes.FailedToParse, result.getWriteError().code);
  assert.writeError(result);
  assert.throws(() => assert.writeOK(result));
  assert.throws(() => assert.commandWorked(result));

  assert.eq(1, coll.remove({ a: 3 }).nRemoved);
  assert.eq(1, coll.remove({}, true).nRemoved);
  assert.eq(0, coll.remove({}).nRemoved);

  const inserted = coll.insertOne({ _id: 5 });
  assert.eq({ acknowledged: true, insertedId: 5 }, inserted);
  const error = assert.throwsWithCode(() => coll.insertOne({ _id: 5 }), ErrorCodes.DuplicateKey);
  assert.includes(error.message, "E11000");
  assert.eq(
    [5, 6],
    coll
      .insertMany([{ _id: 6 }])
      .insertedIds.concat(5)
      .sort(),
  );
  assert.eq(2, coll.deleteMany({}).deletedCount);
})();
