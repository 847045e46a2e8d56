// count, countDocuments, estimatedDocumentCount and distinct.
(function () {
  "use strict";

  const coll = db.counts_and_distinct;
  coll.drop();
  assert.eq(0, coll.count());
  assert.eq([], coll.distinct("x"));

  for (let i = 0; i < 30; i++)
    assert.commandWorked(coll.insert({ _id: i, color: ["red", "green", "blue"][i % 3], sizes: [i % 2, 9] }));
  assert.eq(30, coll.count());
  assert.eq(10, coll.count({ color: "red" }));
  assert.eq(10, coll.find({ color: "red" }).limit(4).count(), "count ignores the limit");
  assert.eq(4, coll.find({ color: "red" }).limit(4).size(), "size does not");
  assert.eq(25, coll.find().skip(5).count(true));
  assert.eq(10, coll.countDocuments({ color: "blue" }));
  assert.eq(3, coll.countDocuments({}, { skip: 27 }));
  assert.eq(30, coll.estimatedDocumentCount());

  assert.eq(["blue", "green", "red"], coll.distinct("color").sort());
  assert.eq(["blue"], coll.distinct("color", { _id: { $in: [2, 5] } }));
  assert.eq([0, 1, 9], coll.distinct("sizes").sort());
  assert.eq([], coll.distinct("missing"));
  assert.throws(() => coll.distinct({ not: "a string" }));
  assert.commandFailedWithCode(db.runCommand({ distinct: coll.getName() }), 40414);
  assert.throwsWithCode(() => coll.count({ $noSuchOperator: 1 }), ErrorCodes.BadValue);
})();
