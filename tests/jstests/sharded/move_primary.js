// Another primary shard: unsharded collections and views move, sharded ones stay.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const config = db.getSiblingDB("config");
  const [first, second] = config.shards.find().sort({ _id: 1 }).toArray();
  const mine = newDatabase("move_primary");
  const sharded = shardInHalves(mine.sharded, { k: 1 }, { k: 0 });
  for (let k = -10; k < 10; k++) assert.commandWorked(sharded.insert({ _id: k, k }));
  for (let _id = 0; _id < 100; _id++) assert.commandWorked(mine.plain.insert({ _id, a: _id % 10 }));
  assert.commandWorked(mine.plain.createIndex({ a: 1 }, { name: "by_a" }));
  assert.commandWorked(mine.createCollection("capped", { capped: true, size: 4096 }));
  assert.commandWorked(mine.createView("fives", "plain", [{ $match: { a: 5 } }]));
  const before = config.databases.findOne({ _id: "move_primary" });
  assert.eq(first._id, before.primary);

  assert.commandWorked(db.adminCommand({ movePrimary: "move_primary", to: second._id }));
  const after = config.databases.findOne({ _id: "move_primary" });
  assert.eq(second._id, after.primary);
  assert.gt(after.version.lastMod, before.version.lastMod);

  assert.eq(100, mine.plain.find().itcount());
  assert.eq(10, mine.plain.find({ a: 5 }).hint("by_a").itcount());
  assert.eq(10, mine.fives.find().itcount());
  assert(mine.capped.isCapped());
  const on = (shard, name) => new Mongo(shard.host).getDB("move_primary")[name].find().itcount();
  assert.eq([0, 100], [on(first, "plain"), on(second, "plain")]);
  assert.eq([10, 10], [on(first, "sharded"), on(second, "sharded")]);
  assert.eq(20, sharded.find().itcount());

  jsTestLog("Writes and new collections go to the new primary shard");
  assert.commandWorked(mine.plain.insert({ _id: 100 }));
  assert.commandWorked(mine.later.insert({ _id: 1 }));
  assert.eq([101, 1], [on(second, "plain"), on(second, "later")]);

  jsTestLog("Again to the same shard, and to none");
  assert.commandWorked(db.adminCommand({ movePrimary: "move_primary", to: second._id }));
  assert.commandFailedWithCode(
    db.adminCommand({ movePrimary: "move_primary", to: "nowhere" }),
    ErrorCodes.ShardNotFound,
  );
  assert.commandFailedWithCode(db.runCommand({ movePrimary: "move_primary", to: first._id }), ErrorCodes.Unauthorized);
})();
