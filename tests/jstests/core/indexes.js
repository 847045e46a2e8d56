// Creating, listing, hiding, using and dropping indexes.
(function () {
  "use strict";

  const coll = db.indexes;
  coll.drop();
  for (let i = 0; i < 20; i++) assert.commandWorked(coll.insert({ _id: i, a: i % 4, b: { c: i } }));

  const created = assert.commandWorked(coll.createIndex({ a: 1, "b.c": -1 }));
  assert(created.ok === 1);
  assert.commandWorked(coll.createIndexes([{ b: 1 }, { a: -1 }]));
  const names = coll.getIndexes().map((each) => each.name);
  assert.sameMembers(["_id_", "a_1_b.c_-1", "b_1", "a_-1"], names);
  assert.eq({ a: 1, "b.c": -1 }, coll.getIndexByName("a_1_b.c_-1").key);

  assert.commandWorked(coll.createIndex({ a: 1, "b.c": -1 }), "the same index again");
  assert.commandFailedWithCode(coll.createIndex({ a: 1 }, { name: "b_1" }), ErrorCodes.IndexKeySpecsConflict);
  assert.commandFailedWithCode(coll.createIndex({ a: "sideways" }), ErrorCodes.CannotCreateIndex);
  assert.commandFailedWithCode(coll.createIndex({}), ErrorCodes.CannotCreateIndex);

  assert.eq(
    [19, 15, 11, 7, 3],
    coll
      .find({ a: 3 })
      .hint("a_1_b.c_-1")
      .map((each) => each._id),
  );
  assert.eq(20, coll.find().hint({ $natural: 1 }).itcount());
  const error = assert.throws(() => coll.find().hint("no_such_index").itcount());
  assert.eq(ErrorCodes.BadValue, error.code);

  assert.commandWorked(coll.hideIndex("b_1"));
  assert(coll.getIndexByName("b_1").hidden);
  assert.commandWorked(coll.unhideIndex({ b: 1 }));
  assert(!coll.getIndexByName("b_1").hidden);

  assert.commandWorked(coll.dropIndex("b_1"));
  assert.commandWorked(coll.dropIndex({ a: -1 }));
  assert.commandFailedWithCode(coll.dropIndex("b_1"), ErrorCodes.IndexNotFound);
  assert.commandFailedWithCode(coll.dropIndex("_id_"), ErrorCodes.InvalidOptions);
  assert.commandWorked(coll.dropIndexes());
  assert.eq(
    ["_id_"],
    coll.getIndexes().map((each) => each.name),
  );
})();
