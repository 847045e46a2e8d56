// A view of a sharded collection: reads that need one shard or a plain filter of all.
(function () {
  "use strict";

  const shards = db
    .getSiblingDB("config")
    .shards.find()
    .sort({ _id: 1 })
    .map((each) => each._id);
  const mine = db.getSiblingDB("views_of_sharded");
  const ns = mine.c.getFullName();
  assert.commandWorked(db.getSiblingDB(mine.getName()).dropDatabase());
  assert.commandWorked(sh.enableSharding(mine.getName(), shards[0]));
  assert.commandWorked(sh.shardCollection(ns, { k: 1 }));
  assert.commandWorked(sh.splitAt(ns, { k: 0 }));
  assert.commandWorked(sh.moveChunk(ns, { k: 0 }, shards[1]));
  for (let k = -20; k < 20; k++) assert.commandWorked(mine.c.insert({ _id: k, k, even: k % 2 === 0 }));

  assert.commandWorked(mine.createView("evens", "c", [{ $match: { even: true } }]));
  assert.eq(10, mine.evens.find({ k: { $gte: 0 } }).itcount());
  assert.eq(20, mine.evens.find().itcount());
  assert.eq(
    [18],
    mine.evens.find({ k: 18 }).map((each) => each._id),
  );
  assert.commandFailedWithCode(
    sh.shardCollection(mine.evens.getFullName(), { k: 1 }),
    ErrorCodes.CommandNotSupportedOnView,
  );
  assert.writeErrorWithCode(mine.evens.insert({ k: 1 }), ErrorCodes.CommandNotSupportedOnView);
})();
