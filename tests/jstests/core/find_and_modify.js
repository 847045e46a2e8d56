// findAndModify in its forms.
(function () {
  "use strict";

  const coll = db.find_and_modify;
  coll.drop();
  for (let i = 0; i < 5; i++) assert.commandWorked(coll.insert({ _id: i, priority: 10 - i, state: "waiting" }));

  const claim = () =>
    coll.findAndModify({ query: { state: "waiting" }, sort: { priority: 1 }, update: { $set: { state: "running" } } });
  assert.eq(4, claim()._id);
  assert.eq(3, claim()._id);
  assert.eq("waiting", claim().state, "the document before the update");
  assert.eq(2, coll.count({ state: "waiting" }));

  assert.eq(
    { priority: 11 },
    coll.findAndModify({
      query: { _id: 0 },
      update: { $inc: { priority: 1 } },
      new: true,
      fields: { _id: 0, priority: 1 },
    }),
  );
  assert.eq(1, coll.findAndModify({ query: { _id: 1 }, remove: true })._id);
  assert.isnull(coll.findAndModify({ query: { _id: 1 }, remove: true }));

  assert.eq(2, coll.findOneAndUpdate({ _id: 2 }, { $set: { state: "done" } }, { returnNewDocument: true })._id);
  assert.eq({ _id: 3, replaced: 1 }, coll.findOneAndReplace({ _id: 3 }, { replaced: 1 }, { returnDocument: "after" }));
  assert.eq({ _id: 3, replaced: 1 }, coll.findOneAndDelete({ _id: 3 }));
  assert.throws(() => coll.findOneAndReplace({ _id: 2 }, { $set: { a: 1 } }));
  assert.throws(() => coll.findOneAndUpdate({ _id: 2 }, { a: 1 }));
  assert.throws(() => coll.findOneAndUpdate({ _id: 2 }, {}));

  const reply = assert.commandWorked(
    db.runCommand({ findAndModify: coll.getName(), query: { _id: 99 }, update: { $set: { a: 1 } }, upsert: true }),
  );
  assert.eq({ n: 1, updatedExisting: false, upserted: 99 }, reply.lastErrorObject);
  assert.commandFailedWithCode(
    db.runCommand({ findAndModify: coll.getName(), remove: true, new: true }),
    ErrorCodes.FailedToParse,
  );
  assert.commandFailedWithCode(
    db.runCommand({ findAndModify: coll.getName(), remove: true, update: {} }),
    ErrorCodes.FailedToParse,
  );
  assert.throwsWithCode(() => coll.findAndModify({ query: { _id: 2 } }), ErrorCodes.FailedToParse);
})();
