// Databases and collections of suites on the shared cluster, which has two shards.

// The ids of the shards, in order.
function shardIds() {
  const found = db.getSiblingDB("config").shards.find().sort({ _id: 1 });
  return found.map((each) => each._id);
}

// An empty database whose primary shard is the first.
function newDatabase(name) {
  const created = db.getSiblingDB(name);
  assert.commandWorked(created.dropDatabase());
  assert.commandWorked(sh.enableSharding(name, shardIds()[0]));
  return created;
}

// Shard a collection by `key`; the second shard gets what is not below `middle`.
function shardInHalves(coll, key, middle) {
  const ns = coll.getFullName();
  assert.commandWorked(sh.shardCollection(ns, key));
  assert.commandWorked(sh.splitAt(ns, middle));
  assert.commandWorked(sh.moveChunk(ns, middle, shardIds()[1]));
  return coll;
}

// A collection like that, alone in a new database.
function newCollectionInHalves(ns, key, middle) {
  newDatabase(ns.split(".")[0]);
  return shardInHalves(db.getMongo().getCollection(ns), key, middle);
}
