// TTL indexes: their options, and that collMod changes them.
(function () {
  "use strict";

  const coll = db.ttl_indexes;
  coll.drop();
  assert.commandWorked(coll.createIndex({ at: 1 }, { expireAfterSeconds: 3600 }));
  assert.eq(3600, coll.getIndexByName("at_1").expireAfterSeconds);

  assert.commandWorked(
    coll.insert([{ _id: "new", at: new Date() }, { _id: "never", at: "not a date" }, { _id: "none" }]),
  );
  assert.eq(3, coll.count());

  const changed = assert.commandWorked(
    db.runCommand({ collMod: coll.getName(), index: { name: "at_1", expireAfterSeconds: 60 } }),
  );
  assert.eq(1, changed.ok);
  assert.eq(60, coll.getIndexByName("at_1").expireAfterSeconds);

  assert.commandFailedWithCode(
    coll.createIndex({ a: 1, b: 1 }, { expireAfterSeconds: 1 }),
    ErrorCodes.CannotCreateIndex,
  );
  assert.commandFailedWithCode(coll.createIndex({ a: 1 }, { expireAfterSeconds: -1 }), [
    ErrorCodes.CannotCreateIndex,
    ErrorCodes.InvalidOptions,
  ]);
  assert.commandFailedWithCode(coll.createIndex({ a: 1 }, { expireAfterSeconds: "soon" }), [
    ErrorCodes.TypeMismatch,
    ErrorCodes.CannotCreateIndex,
  ]);
  assert.commandFailedWithCode(coll.createIndex({ at: 1 }, { expireAfterSeconds: 5 }), ErrorCodes.IndexOptionsConflict);
})();
