// Update operators, pipelines, array filters, and updates that are refused.
(function () {
  "use strict";

  const coll = db.update_operators;
  const cases = [
    { before: { n: 1 }, update: { $inc: { n: 4 } }, after: { n: 5 } },
    { before: { n: 3 }, update: { $mul: { n: 2 } }, after: { n: 6 } },
    { before: { a: 1, b: 2 }, update: { $unset: { a: 1 } }, after: { b: 2 } },
    { before: { a: 1 }, update: { $rename: { a: "b" } }, after: { b: 1 } },
    { before: { n: 5 }, update: { $min: { n: 3 } }, after: { n: 3 } },
    { before: { n: 5 }, update: { $max: { n: 9 } }, after: { n: 9 } },
    { before: { l: [1] }, update: { $push: { l: { $each: [3, 2], $sort: 1 } } }, after: { l: [1, 2, 3] } },
    { before: { l: [1, 2] }, update: { $addToSet: { l: 2 } }, after: { l: [1, 2] } },
    { before: { l: [1, 2, 3] }, update: { $pull: { l: { $gte: 2 } } }, after: { l: [1] } },
    { before: { l: [1, 2] }, update: { $pop: { l: -1 } }, after: { l: [2] } },
    { before: { d: { e: 1 } }, update: { $set: { "d.f": 2 } }, after: { d: { e: 1, f: 2 } } },
    { before: { b: NumberInt(12) }, update: { $bit: { b: { and: NumberInt(10) } } }, after: { b: 8 } },
    { before: { n: 1 }, update: [{ $set: { m: { $add: ["$n", 1] } } }], after: { n: 1, m: 2 } },
    { before: { n: 1 }, update: { other: true }, after: { other: true } },
  ];

  for (const { before, update, after } of cases) {
    coll.drop();
    assert.commandWorked(coll.insert({ _id: 0, ...before }));
    assert.commandWorked(coll.update({ _id: 0 }, update), () => tojson(update));
    assert.docEq({ _id: 0, ...after }, coll.findOne(), () => tojson(update));
  }

  coll.drop();
  assert.commandWorked(
    coll.insert({
      _id: 0,
      l: [
        { k: 1, v: 1 },
        { k: 2, v: 1 },
      ],
    }),
  );
  assert.commandWorked(coll.update({ _id: 0 }, { $set: { "l.$[each].v": 9 } }, { arrayFilters: [{ "each.k": 2 }] }));
  assert.eq(
    [1, 9],
    coll.findOne().l.map((each) => each.v),
  );
  assert.commandWorked(coll.update({ "l.k": 1 }, { $inc: { "l.$.v": 1 } }));
  assert.eq(2, coll.findOne().l[0].v);

  assert.writeErrorWithCode(coll.update({ _id: 0 }, { $set: { _id: 1 } }), ErrorCodes.ImmutableField);
  assert.writeErrorWithCode(coll.update({ _id: 0 }, { $inc: { l: 1 } }), ErrorCodes.TypeMismatch);
  assert.writeErrorWithCode(
    coll.update({ _id: 0 }, { $set: { a: 1 }, $inc: { a: 1 } }),
    ErrorCodes.ConflictingUpdateOperators,
  );
  assert.writeErrorWithCode(coll.update({}, { whole: 1 }, { multi: true }), ErrorCodes.FailedToParse);
})();
