// Dropping collections and databases, and making them again.
(function () {
  "use strict";

  const coll = db.drop_one;
  assert.commandWorked(coll.insert({ _id: 1 }));
  const { uuid } = coll.exists().info;
  assert(coll.drop());
  assert(!coll.drop() || coll.exists() === null, "the second drop finds nothing");
  assert.isnull(coll.exists());
  assert.eq(0, coll.find().itcount());

  assert.commandWorked(coll.insert({ _id: 1, again: true }));
  assert.neq(uuid, coll.exists().info.uuid, "a new collection has a new UUID");
  assert.eq({ _id: 1, again: true }, coll.findOne());

  const other = db.getSiblingDB("drop_database");
  for (const name of ["a", "b.c", "d"]) assert.commandWorked(other.getCollection(name).insert({ x: 1 }));
  assert.eq(["a", "b.c", "d"], other.getCollectionNames());
  assert.contains("drop_database", db.getMongo().getDBNames());
  assert.commandWorked(other.dropDatabase());
  assert.eq([], other.getCollectionNames());
  assert.doesNotContain("drop_database", db.getMongo().getDBNames());
  assert.commandWorked(other.dropDatabase(), "dropping what is not there works");

  assert.commandWorked(other.a.insert({ _id: "fresh" }));
  assert.eq(["fresh"], other.a.distinct("_id"));
  assert.commandWorked(other.dropDatabase());
})();
