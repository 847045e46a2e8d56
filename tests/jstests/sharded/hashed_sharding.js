// Hashed shard keys: initial chunks on all shards, and queries by value and by range.
(function () {
  "use strict";

  load("jstests/libs/fixture_helpers.js");

  const ns = "hashed_sharding.users";
  const config = db.getSiblingDB("config");
  const coll = db.getMongo().getCollection(ns);
  const shards = config.shards.find().itcount();
  assert.commandWorked(db.getSiblingDB("hashed_sharding").dropDatabase());
  assert.commandWorked(sh.enableSharding("hashed_sharding"));
  assert.commandWorked(sh.shardCollection(ns, { user: "hashed" }, false, { numInitialChunks: 6 }));

  const { uuid } = config.collections.findOne({ _id: ns });
  const chunks = config.chunks.find({ uuid }).sort({ min: 1 }).toArray();
  assert.eq(6, chunks.length);
  assert.eq(shards, FixtureHelpers.numberOfShardsForCollection(coll));
  assert(chunks[1].min.user instanceof NumberLong);

  for (let i = 0; i < 200; i++) assert.commandWorked(coll.insert({ _id: i, user: i }));
  assert.eq(200, coll.find().itcount());
  assert.eq(
    [77],
    coll.find({ user: 77 }).map((each) => each._id),
  );
  assert.eq(1, coll.find({ user: 77 }).explain().queryPlanner.winningPlan.shards.length);
  assert.eq(shards, coll.find({ user: { $gt: 77 } }).explain().queryPlanner.winningPlan.shards.length);
  assert.eq(22, coll.find({ user: { $gt: 77, $lt: 100 } }).itcount());

  const hash = convertShardKeyToHashed(77);
  assert(hash instanceof NumberLong);
  assert.eq(hash, convertShardKeyToHashed(NumberLong(77)));
  const owner = chunks.find(
    (each) => bsonWoCompare(each.min.user, hash) <= 0 && bsonWoCompare(hash, each.max.user) < 0,
  );
  const [asked] = coll.find({ user: 77 }).explain().queryPlanner.winningPlan.shards;
  assert.eq(owner.shard, asked.shardName);

  assert.commandFailed(sh.shardCollection("hashed_sharding.bad", { a: "hashed", b: "hashed" }));
  assert.commandFailed(sh.shardCollection("hashed_sharding.bad", { a: "hashed" }, true));
})();
