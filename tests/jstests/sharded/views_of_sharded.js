// A view of a sharded collection: reads that need one shard or a plain filter of all.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const mine = newDatabase("views_of_sharded");
  shardInHalves(mine.c, { k: 1 }, { k: 0 });
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
