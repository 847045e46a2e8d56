// Which shards a query asks: one for the whole key, some for a range, all without the key.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("targeting.people", { age: 1 }, { age: 40 });
  const shards = shardIds();
  for (let age = 0; age < 80; age++) assert.commandWorked(coll.insert({ _id: age, age, name: `n${age % 7}` }));

  const asked = (query) =>
    coll
      .find(query)
      .explain()
      .queryPlanner.winningPlan.shards.map((each) => each.shardName)
      .sort();
  assert.eq([shards[0]], asked({ age: 3 }));
  assert.eq([shards[1]], asked({ age: { $gte: 40 } }));
  assert.eq([shards[0]], asked({ age: { $lt: 40 }, name: "n1" }));
  assert.eq(shards, asked({ age: { $in: [1, 79] } }));
  assert.eq(shards, asked({ name: "n1" }));
  assert.eq(shards, asked({}));
  assert.eq([shards[1]], asked({ $and: [{ age: { $gt: 50 } }, { age: { $lt: 60 } }] }));

  assert.eq(80, coll.find().itcount());
  assert.eq(
    [39, 40],
    coll
      .find({ age: { $in: [39, 40] } })
      .sort({ age: 1 })
      .map((each) => each.age),
  );
  assert.eq(40, coll.find({ age: { $lt: 40 } }).count());
  const order = coll.find().sort({ name: 1, age: -1 }).limit(5).toArray();
  assert.eq(["n0", 77], [order[0].name, order[0].age]);
})();
