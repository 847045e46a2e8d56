// $lookup, $graphLookup and $unionWith between sharded and unsharded collections.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const orders = newCollectionInHalves("joins_across_shards.orders", { _id: 1 }, { _id: 50 });
  const mine = orders.getDB();
  const items = shardInHalves(mine.items, { sku: 1 }, { sku: 5 });
  const people = shardInHalves(mine.people, { _id: 1 }, { _id: 3 });
  const made = [];
  for (let _id = 0; _id < 100; _id++) made.push({ _id, sku: _id % 10, customer: _id % 4 });
  assert.commandWorked(orders.insert(made));
  for (let sku = 0; sku < 10; sku++) assert.commandWorked(items.insert({ sku, price: 10 * sku }));
  for (let _id = 0; _id < 4; _id++) assert.commandWorked(mine.customers.insert({ _id, name: `n${_id}` }));
  for (let _id = 0; _id < 6; _id++) assert.commandWorked(people.insert(_id === 0 ? { _id } : { _id, boss: _id - 1 }));

  const withItems = { $lookup: { from: "items", localField: "sku", foreignField: "sku", as: "item" } };
  const total = { $group: { _id: null, n: { $sum: 1 }, total: { $sum: "$item.price" } } };
  assert.eq([{ _id: null, n: 100, total: 4500 }], orders.aggregate([withItems, { $unwind: "$item" }, total]).toArray());

  jsTestLog("By a pipeline, with and without variables");
  const dearer = {
    $lookup: {
      from: "items",
      let: { sku: "$sku" },
      pipeline: [{ $match: { $expr: { $gt: ["$sku", "$$sku"] } } }, { $count: "n" }],
      as: "dearer",
    },
  };
  assert.eq(
    [[{ n: 9 }], [{ n: 4 }], []],
    orders
      .aggregate([{ $match: { _id: { $in: [0, 55, 99] } } }, dearer, { $sort: { _id: 1 } }])
      .map((each) => each.dearer),
  );
  const cheapest = { $lookup: { from: "items", pipeline: [{ $sort: { price: 1 } }, { $limit: 1 }], as: "cheapest" } };
  assert.eq(100, orders.aggregate([cheapest, { $match: { "cheapest.0.sku": 0 } }]).itcount());

  jsTestLog("To and from an unsharded collection");
  const withCustomer = { $lookup: { from: "customers", localField: "customer", foreignField: "_id", as: "customer" } };
  assert.eq(25, orders.aggregate([withCustomer, { $match: { "customer.name": "n3" } }]).itcount());
  const withOrders = { $lookup: { from: "orders", localField: "_id", foreignField: "customer", as: "orders" } };
  assert.eq(
    [25, 25, 25, 25],
    mine.customers.aggregate([withOrders, { $sort: { _id: 1 } }]).map((each) => each.orders.length),
  );

  jsTestLog("Along a chain that goes from shard to shard");
  const chain = { from: "people", startWith: "$boss", connectFromField: "boss", connectToField: "_id", as: "chain" };
  const chainOf = (options) =>
    people
      .aggregate([{ $match: { _id: 5 } }, { $graphLookup: { ...chain, ...options } }])
      .map((each) => each.chain.map((one) => one._id));
  assert.sameMembers([0, 1, 2, 3, 4], chainOf({})[0]);
  assert.sameMembers([3, 4], chainOf({ maxDepth: 1 })[0]);
  assert.sameMembers([2, 3, 4], chainOf({ restrictSearchWithMatch: { _id: { $gt: 1 } } })[0]);

  jsTestLog("Beside each other");
  const names = { $unionWith: { coll: "customers", pipeline: [{ $project: { name: 1 } }] } };
  assert.eq([{ n: 7 }], orders.aggregate([{ $match: { _id: { $lt: 3 } } }, names, { $count: "n" }]).toArray());
  assert.eq(
    [{ joined: [{ n: 100 }], all: [{ n: 100 }] }],
    orders
      .aggregate([{ $facet: { joined: [withItems, { $unwind: "$item" }, { $count: "n" }], all: [{ $count: "n" }] } }])
      .toArray(),
  );
})();
