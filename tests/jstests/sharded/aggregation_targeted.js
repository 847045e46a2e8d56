// Pipelines on a sharded collection that one shard can answer, and those that only concatenate or sort.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("aggregation_targeted.c", { k: 1 }, { k: 0 });
  for (let k = -50; k < 50; k++) assert.commandWorked(coll.insert({ _id: k, k, m: Math.abs(k) % 3 }));

  const groups = coll.aggregate([
    { $match: { k: { $gte: 0 } } },
    { $group: { _id: "$m", n: { $sum: 1 } } },
    { $sort: { _id: 1 } },
  ]);
  assert.eq(
    [
      { _id: 0, n: 17 },
      { _id: 1, n: 17 },
      { _id: 2, n: 16 },
    ],
    groups.toArray(),
  );
  assert.eq(100, coll.aggregate([{ $project: { k: 1 } }], { cursor: { batchSize: 3 } }).itcount());
  assert.eq(
    [-2, -1, 0, 1],
    coll.aggregate([{ $match: { k: { $gte: -2, $lt: 2 } } }, { $sort: { k: 1 } }]).map((each) => each.k),
  );
  assert.eq(
    [49, 48],
    coll.aggregate([{ $sort: { k: -1 } }, { $limit: 2 }]).map((each) => each.k),
  );
  assert.eq(100, coll.countDocuments({}));
})();
