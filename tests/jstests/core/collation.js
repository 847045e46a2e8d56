// Collations of collections, indexes and single operations.
(function () {
  "use strict";

  const caseless = { locale: "en", strength: 2 };
  const coll = db.collation;
  coll.drop();
  assert.commandWorked(
    coll.insert([
      { _id: 1, w: "apple" },
      { _id: 2, w: "Apple" },
      { _id: 3, w: "banana" },
    ]),
  );

  assert.eq(1, coll.find({ w: "apple" }).itcount());
  assert.eq(2, coll.find({ w: "apple" }).collation(caseless).itcount());
  assert.eq(2, coll.count({ w: "APPLE" }, { collation: caseless }));
  assert.eq(2, coll.distinct("w", {}, { collation: caseless }).length);
  assert.eq(2, coll.aggregate([{ $match: { w: "APPLE" } }], { collation: caseless }).itcount());
  assert.eq(2, coll.update({ w: "APPLE" }, { $set: { seen: 1 } }, { multi: true, collation: caseless }).nModified);
  assert.eq(1, coll.deleteOne({ w: "BANANA" }, { collation: caseless }).deletedCount);

  jsTestLog("A collection with a collation uses it wherever none is named");
  const own = db.collation_own;
  own.drop();
  assert.commandWorked(db.createCollection(own.getName(), { collation: caseless }));
  assert.commandWorked(
    own.insert([
      { _id: 1, w: "x" },
      { _id: 2, w: "X" },
    ]),
  );
  assert.eq(2, own.find({ w: "X" }).itcount());
  assert.eq(1, own.find({ w: "X" }).collation({ locale: "simple" }).itcount());
  assert.eq("en", db.getCollectionInfos({ name: own.getName() })[0].options.collation.locale);

  assert.commandWorked(own.createIndex({ w: 1 }, { name: "simple", collation: { locale: "simple" } }));
  assert.eq(undefined, own.getIndexByName("simple").collation);
  assert.throwsWithCode(() => coll.find().collation({ locale: "nowhere" }).itcount(), ErrorCodes.BadValue);

  const numbers = db.collation_numbers;
  numbers.drop();
  assert.commandWorked(numbers.insert(["10", "9", "100"].map((_id) => ({ _id }))));
  const order = (collation) =>
    numbers
      .find()
      .sort({ _id: 1 })
      .collation(collation)
      .map((each) => each._id);
  assert.eq(["10", "100", "9"], order({ locale: "simple" }));
  assert.eq(["9", "10", "100"], order({ locale: "en", numericOrdering: true }));
})();
