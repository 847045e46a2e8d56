// What the catalog and the sharding commands say of databases, collections and shards.
(function () {
  "use strict";

  const config = db.getSiblingDB("config");
  const admin = db.getSiblingDB("admin");
  const listed = assert.commandWorked(admin.runCommand({ listShards: 1 })).shards;
  assert.sameMembers(
    config.shards.distinct("_id"),
    listed.map((each) => each._id),
  );

  assert.commandWorked(db.getSiblingDB("catalog").dropDatabase());
  assert.commandWorked(sh.enableSharding("catalog", listed[1]._id));
  const entry = config.databases.findOne({ _id: "catalog" });
  assert.eq(listed[1]._id, entry.primary);
  assert.hasFields(entry.version, ["uuid", "timestamp", "lastMod"]);

  const ns = "catalog.c";
  assert.commandWorked(sh.shardCollection(ns, { "a.b": 1 }));
  const collection = config.collections.findOne({ _id: ns });
  assert.eq({ "a.b": 1 }, collection.key);
  assert.eq(false, collection.unique);
  const [chunk] = config.chunks.find({ uuid: collection.uuid }).toArray();
  assert.eq([{ "a.b": MinKey }, { "a.b": MaxKey }], [chunk.min, chunk.max]);
  assert.eq(listed[1]._id, chunk.shard);

  const version = assert.commandWorked(db.getMongo().getCollection(ns).getShardVersion());
  assert.eq(chunk.lastmod, version.version);
  assert.commandWorked(sh.shardCollection(ns, { "a.b": 1 }), "the same again");
  assert.commandFailedWithCode(sh.shardCollection(ns, { c: 1 }), ErrorCodes.AlreadyInitialized);
  assert.commandFailed(sh.shardCollection("catalog.bad", {}));
  assert.commandFailed(sh.shardCollection("catalog.bad", { a: 2 }));
  assert.commandFailedWithCode(db.runCommand({ shardCollection: ns, key: { a: 1 } }), ErrorCodes.Unauthorized);
  sh.status();
})();
