// Pipelines on a collection of one shard.
(function () {
  "use strict";

  load("jstests/aggregation/extras/utils.js");

  const coll = db.aggregation;
  coll.drop();
  const sales = [
    { _id: 1, item: "rope", qty: 4, price: 10 },
    { _id: 2, item: "sail", qty: 1, price: 200 },
    { _id: 3, item: "rope", qty: 6, price: 9 },
    { _id: 4, item: "mast", qty: 1, price: 900 },
  ];
  assert.commandWorked(coll.insert(sales));

  const totals = coll.aggregate([{ $group: { _id: "$item", qty: { $sum: "$qty" } } }]).toArray();
  assert(
    arrayEq(
      [
        { _id: "rope", qty: 10 },
        { _id: "sail", qty: 1 },
        { _id: "mast", qty: 1 },
      ],
      totals,
    ),
  );

  const worth = coll.aggregate(
    { $match: { item: "rope" } },
    { $project: { worth: { $multiply: ["$qty", "$price"] } } },
    { $sort: { worth: 1 } },
  );
  assert.eq(
    [40, 54],
    worth.map((each) => each.worth),
  );

  assert.eq([{ n: 3 }], coll.aggregate([{ $group: { _id: "$item" } }, { $count: "n" }]).toArray());
  assert.eq(
    4,
    coll
      .aggregate([{ $unwind: { path: "$none", preserveNullAndEmptyArrays: true } }], { cursor: { batchSize: 2 } })
      .itcount(),
  );
  const [facets] = coll
    .aggregate([{ $facet: { cheap: [{ $match: { price: { $lt: 20 } } }, { $count: "n" }], all: [{ $count: "n" }] } }])
    .toArray();
  assert.eq({ cheap: [{ n: 2 }], all: [{ n: 4 }] }, facets);
  const buckets = coll.aggregate([{ $bucket: { groupBy: "$price", boundaries: [0, 100, 1000] } }]).toArray();
  assert.eq(
    [2, 2],
    buckets.map((each) => each.count),
  );

  assertErrorCode(coll, [{ $noSuchStage: {} }], 40324);
  assertErrorCode(coll, [{ $limit: -1 }], 5107201);
  assert.commandFailedWithCode(db.runCommand({ aggregate: coll.getName(), pipeline: [] }), ErrorCodes.FailedToParse);

  const out = db.aggregation_out;
  coll.aggregate([{ $match: { qty: 1 } }, { $out: out.getName() }]);
  assert.eq(2, out.count());
  coll.aggregate([{ $set: { merged: true } }, { $merge: { into: out.getName() } }]);
  assert.eq(4, out.count({ merged: true }));
})();
