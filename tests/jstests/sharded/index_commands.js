// Index commands reach all shards that own chunks.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const config = db.getSiblingDB("config");
  const shards = config.shards.find().sort({ _id: 1 }).toArray();
  const ns = "index_commands.c";
  const coll = newCollectionInHalves(ns, { k: 1 }, { k: 0 });
  for (let k = -10; k < 10; k++) assert.commandWorked(coll.insert({ _id: k, k, a: k * k }));

  const reply = assert.commandWorked(coll.createIndex({ a: 1 }));
  assert.eq(2, Object.keys(reply.raw).length, "both shards built it");
  const direct = shards.map((each) => new Mongo(each.host).getCollection(ns));
  for (const each of direct)
    assert.contains(
      "a_1",
      each.getIndexes().map((index) => index.name),
    );

  assert.eq(
    [-9, 9],
    coll
      .find({ a: 81 })
      .hint({ a: 1 })
      .sort({ k: 1 })
      .map((each) => each.k),
  );
  assert.commandWorked(
    db.getSiblingDB("index_commands").runCommand({ collMod: "c", index: { name: "a_1", hidden: true } }),
  );
  for (const each of direct) assert(each.getIndexByName("a_1").hidden);

  const dropped = assert.commandWorked(coll.dropIndex("a_1"));
  assert.eq(2, Object.keys(dropped.raw).length);
  for (const each of direct) assert.isnull(each.getIndexByName("a_1"));
  assert.commandFailedWithCode(coll.dropIndex("a_1"), ErrorCodes.IndexNotFound);
})();
