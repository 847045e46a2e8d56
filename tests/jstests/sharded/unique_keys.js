// Unique indexes on sharded collections: only those that begin with the shard key.
(function () {
  "use strict";

  const ns = "unique_keys.c";
  const coll = db.getMongo().getCollection(ns);
  assert.commandWorked(db.getSiblingDB("unique_keys").dropDatabase());
  assert.commandWorked(sh.enableSharding("unique_keys"));
  assert.commandWorked(sh.shardCollection(ns, { k: 1 }, true));
  assert(coll.getIndexByKey({ k: 1 }).unique);
  assert.commandWorked(sh.splitAt(ns, { k: 0 }));

  assert.commandWorked(coll.insert({ _id: 1, k: 5 }));
  assert.writeErrorWithCode(coll.insert({ _id: 2, k: 5 }), ErrorCodes.DuplicateKey);
  assert.commandWorked(coll.createIndex({ k: 1, other: 1 }, { unique: true }));
  assert.commandFailedWithCode(coll.createIndex({ other: 1 }, { unique: true }), ErrorCodes.CannotCreateIndex);
  assert.commandWorked(coll.createIndex({ other: 1 }));

  const bad = db.getSiblingDB("unique_keys").bad;
  assert.commandWorked(bad.createIndex({ u: 1 }, { unique: true }));
  assert.commandFailedWithCode(sh.shardCollection(bad.getFullName(), { k: 1 }), ErrorCodes.InvalidOptions);
  assert.commandWorked(bad.insert({ k: 1 }));
  assert.commandFailedWithCode(sh.shardCollection(bad.getFullName(), { other: 1 }), ErrorCodes.InvalidOptions);
})();
