// Pipelines whose results are merged of those of both shards.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("aggregation_merged.c", { k: 1 }, { k: 0 });
  const documents = [];
  for (let k = -50; k < 50; k++) documents.push({ _id: k, k, m: Math.abs(k) % 3, s: k % 2 === 0 ? "x" : "X" });
  assert.commandWorked(coll.insert(documents));

  jsTestLog("$group, with parts of each group on both shards");
  const groups = [0, 1, 2].map((m) => {
    const keys = documents.filter((each) => each.m === m).map((each) => each.k);
    const sum = keys.reduce((total, each) => total + each, 0);
    return { _id: m, n: keys.length, low: Math.min(...keys), high: Math.max(...keys), mean: sum / keys.length };
  });
  const group = {
    $group: { _id: "$m", n: { $sum: 1 }, low: { $min: "$k" }, high: { $max: "$k" }, mean: { $avg: "$k" } },
  };
  assert.eq(groups, coll.aggregate([group, { $sort: { _id: 1 } }]).toArray());
  const inBatches = { allowDiskUse: true, cursor: { batchSize: 1 } };
  assert.eq(groups, coll.aggregate([group, { $sort: { _id: 1 } }], inBatches).toArray());
  const sets = coll.aggregate([{ $group: { _id: null, all: { $addToSet: "$m" } } }]).toArray();
  assert.sameMembers([0, 1, 2], sets[0].all);
  assert.eq(
    [34, 33, 33],
    coll.aggregate([{ $sortByCount: "$m" }]).map((each) => each.count),
  );

  jsTestLog("$sort, $skip and $limit");
  const sorted = [...documents].sort((left, right) => left.m - right.m || right.k - left.k);
  assert.eq(sorted, coll.aggregate([{ $sort: { m: 1, k: -1 } }]).toArray());
  assert.eq(sorted.slice(10, 15), coll.aggregate([{ $sort: { m: 1, k: -1 } }, { $skip: 10 }, { $limit: 5 }]).toArray());
  assert.eq(90, coll.aggregate([{ $skip: 10 }]).itcount());

  jsTestLog("Stages that need everything");
  assert.eq(
    [25, 25, 25, 25],
    coll.aggregate([{ $bucketAuto: { groupBy: "$k", buckets: 4 } }]).map((each) => each.count),
  );
  const running = { sum: { $sum: "$k", window: { documents: ["unbounded", "current"] } } };
  assert.eq(
    [-50],
    coll
      .aggregate([{ $setWindowFields: { sortBy: { k: 1 }, output: running } }, { $match: { k: 49 } }])
      .map((each) => each.sum),
  );
  assert.eq([{ n: 100 }], coll.aggregate([{ $count: "n" }]).toArray());
  assert.eq(
    [{ low: [{ n: 50 }], high: [{ n: 50 }] }],
    coll
      .aggregate([
        {
          $facet: {
            low: [{ $match: { k: { $lt: 0 } } }, { $count: "n" }],
            high: [{ $match: { k: { $gte: 0 } } }, { $count: "n" }],
          },
        },
      ])
      .toArray(),
  );

  jsTestLog("Collation, variables, and the plan");
  const byCase = [{ $group: { _id: "$s", n: { $sum: 1 } } }];
  assert.eq(2, coll.aggregate(byCase).itcount());
  assert.eq(
    [100],
    coll.aggregate(byCase, { collation: { locale: "en", strength: 2 } }).map((each) => each.n),
  );
  assert.eq(
    33,
    coll.aggregate([{ $match: { $expr: { $eq: ["$m", "$$wanted"] } } }], { let: { wanted: 0 } }).itcount(),
  );
  const plan = coll.explain().aggregate([group]);
  assert.sameMembers(shardIds(), Object.keys(plan.shards));
  assert.hasFields(plan, ["mergeType", "splitPipeline"]);
  assert.hasFields(plan.splitPipeline, ["shardsPart", "mergerPart"]);
})();
