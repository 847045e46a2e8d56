// mapReduce on a sharded collection: inline, and into collections in all ways.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("map_reduce.c", { k: 1 }, { k: 0 });
  const mine = coll.getDB();
  for (let k = -30; k < 30; k++) assert.commandWorked(coll.insert({ _id: k, k, m: Math.abs(k) % 3 }));

  const map = function () {
    emit(this.m, 1);
  };
  const reduce = function (key, values) {
    return Array.sum(values);
  };
  assert.eq({ 0: 20, 1: 20, 2: 20 }, coll.mapReduce(map, reduce, { out: { inline: 1 } }).convertToSingleObject());

  jsTestLog("A query, variables and a last step");
  const options = {
    query: { k: { $gte: 0 } },
    scope: { factor: 5 },
    finalize: function (key, value) {
      return value * factor;
    },
    out: { inline: 1 },
  };
  assert.eq({ 0: 50, 1: 50, 2: 50 }, coll.mapReduce(map, reduce, options).convertToSingleObject());

  jsTestLog("Into a collection of its own");
  const values = (name) => mine[name].find().sort({ _id: 1 }).map((each) => each.value);
  coll.mapReduce(map, reduce, "totals");
  assert.eq([20, 20, 20], values("totals"));
  coll.mapReduce(map, reduce, { out: { reduce: "totals" }, query: { k: { $lt: 0 } } });
  assert.eq([30, 30, 30], values("totals"), "added to what was there");
  assert.commandWorked(mine.totals.insert({ _id: 7, value: 7 }));
  coll.mapReduce(map, reduce, { out: { merge: "totals" } });
  assert.eq([20, 20, 20, 7], values("totals"));
  coll.mapReduce(map, reduce, { out: { replace: "totals" } });
  assert.eq([20, 20, 20], values("totals"), "nothing of what was there");

  jsTestLog("Into a sharded collection");
  shardInHalves(mine.sharded_totals, { _id: 1 }, { _id: 1 });
  coll.mapReduce(map, reduce, { out: { merge: "sharded_totals" } });
  coll.mapReduce(map, reduce, { out: { reduce: "sharded_totals" } });
  assert.eq([40, 40, 40], values("sharded_totals"));
  const shards = db.getSiblingDB("config").shards.find().sort({ _id: 1 }).toArray();
  assert.eq(
    [1, 2],
    shards.map((each) => new Mongo(each.host).getCollection("map_reduce.sharded_totals").find().itcount()),
  );
})();
