// Unique, partial and sparse indexes.
(function () {
  "use strict";

  const coll = db.unique_indexes;
  coll.drop();
  assert.commandWorked(coll.createIndex({ email: 1 }, { unique: true }));
  assert.commandWorked(coll.insert({ _id: 1, email: "a@example" }));
  const duplicate = coll.insert({ _id: 2, email: "a@example" });
  assert.writeErrorWithCode(duplicate, ErrorCodes.DuplicateKey);
  assert.includes(duplicate.getWriteError().errmsg, "email_1");
  assert.writeErrorWithCode(
    coll.update({ _id: 9 }, { $set: { email: "a@example" } }, { upsert: true }),
    ErrorCodes.DuplicateKey,
  );
  assert.commandWorked(coll.insert({ _id: 3 }), "no email counts as null");
  assert.writeErrorWithCode(coll.insert({ _id: 4 }), ErrorCodes.DuplicateKey);

  jsTestLog("A unique index cannot be built over duplicates");
  coll.drop();
  assert.commandWorked(coll.insert([{ v: 1 }, { v: 1 }]));
  assert.commandFailedWithCode(coll.createIndex({ v: 1 }, { unique: true }), ErrorCodes.DuplicateKey);
  assert.eq(1, coll.getIndexes().length, "nothing is left of it");

  jsTestLog("Sparse and partial indexes have only some documents");
  coll.drop();
  assert.commandWorked(coll.createIndex({ s: 1 }, { unique: true, sparse: true }));
  assert.commandWorked(coll.insert([{ _id: 1 }, { _id: 2 }, { _id: 3, s: 1 }]));
  assert.eq(1, coll.find().hint({ s: 1 }).itcount());
  assert.commandWorked(coll.createIndex({ p: 1 }, { unique: true, partialFilterExpression: { active: true } }));
  assert.commandWorked(
    coll.insert([
      { _id: 5, p: 7, s: 5 },
      { _id: 6, p: 7, s: 6 },
      { _id: 7, p: 7, active: true, s: 7 },
    ]),
  );
  assert.writeErrorWithCode(coll.insert({ _id: 8, p: 7, active: true, s: 8 }), ErrorCodes.DuplicateKey);
})();
