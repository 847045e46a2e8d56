// Dropping sharded collections and databases leaves nothing in the catalog or on a shard.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const config = db.getSiblingDB("config");
  const shards = config.shards.find().sort({ _id: 1 }).toArray();
  const mine = newDatabase("drop_sharded");

  const make = (name) => {
    const ns = `drop_sharded.${name}`;
    shardInHalves(mine[name], { k: 1 }, { k: 0 });
    assert.commandWorked(mine[name].insert([{ k: -1 }, { k: 1 }]));
    return config.collections.findOne({ _id: ns }).uuid;
  };

  const first = make("c");
  assert(mine.c.drop());
  assert.eq(0, config.chunks.count({ uuid: first }));
  for (const each of shards) assert.eq(0, new Mongo(each.host).getDB("drop_sharded").c.find().itcount());

  const second = make("c");
  assert.neq(first, second);
  assert.eq(2, mine.c.find().itcount());

  make("d");
  assert.commandWorked(mine.dropDatabase());
  assert.isnull(config.databases.findOne({ _id: "drop_sharded" }));
  assert.eq(0, config.collections.count({ _id: /^drop_sharded\./ }));
  assert.commandWorked(mine.c.insert({ plain: true }));
  assert.eq(1, mine.c.count(), "the name is free for an unsharded collection");
})();
