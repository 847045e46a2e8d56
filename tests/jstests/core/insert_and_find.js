// Inserts of one and of many documents, and finds with conditions, projections, sort, skip and limit.
(function () {
  "use strict";

  const coll = db.insert_and_find;
  coll.drop();

  const single = coll.insert({ _id: 1, name: "anchor", tags: ["a", "b"] });
  assert.writeOK(single);
  assert.eq(1, single.nInserted);
  assert.eq(0, single.nMatched);

  const many = coll.insert([{ _id: 2, name: "buoy" }, { _id: 3, name: "cleat", tags: ["b"] }, { name: "dinghy" }]);
  assert.commandWorked(many);
  assert.eq(3, many.nInserted);
  assert(coll.findOne({ name: "dinghy" })._id instanceof ObjectId, "the shell adds an ObjectId");

  assert.eq(4, coll.find().itcount());
  assert.eq(
    ["anchor", "cleat"],
    coll
      .find({ tags: "b" })
      .sort({ _id: 1 })
      .map((each) => each.name),
  );
  assert.docEq({ name: "buoy" }, coll.findOne({ _id: 2 }, { _id: 0 }));
  assert.eq({ _id: 2 }, coll.findOne({ _id: 2 }, { name: 0 }));
  assert.eq(
    "buoy",
    coll
      .find({ _id: { $lt: 4 } })
      .sort({ name: 1 })
      .skip(1)
      .limit(1)
      .next().name,
  );
  assert.eq("cleat", coll.find({ _id: { $lt: 4 } }).sort({ name: -1 })[0].name);
  assert.isnull(coll.findOne({ _id: "missing" }));
  assert.eq(2, coll.find({ $or: [{ _id: 1 }, { tags: { $exists: false }, _id: 2 }] }).count());
  assert.eq(1, coll.find({ $where: "this.name == 'buoy'" }).itcount());

  const duplicate = coll.insert({ _id: 1 });
  assert.writeErrorWithCode(duplicate, ErrorCodes.DuplicateKey);
  assert.eq(4, coll.count(), "a failed insert changes nothing");
})();
