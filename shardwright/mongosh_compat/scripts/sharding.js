// From an empty database to manually placed chunks, with the sh helpers.
const namespace = "mongosh_sharding.events";
const test = db.getSiblingDB("mongosh_sharding");
const config = db.getSiblingDB("config");
test.dropDatabase();

const listed = db.adminCommand({ listShards: 1 }).shards;
const shards = listed.map((shard) => shard._id).sort();
assert(shards.length >= 2, "two shards");
assert.eq(sh.addShard(listed[0].host).shardAdded, listed[0]._id, "adding a shard again changes nothing");
assert.eq(config.shards.find().sort({ _id: 1 }).toArray().map((shard) => shard._id), shards, "config.shards");

sh.enableSharding("mongosh_sharding", shards[0]);
assert.eq(config.databases.findOne({ _id: "mongosh_sharding" }).primary, shards[0], "config.databases");

const sharded = sh.shardCollection(namespace, { place: 1, _id: 1 });
assert.eq(sharded.collectionsharded, namespace, "shardCollection");
assert.eq(sh.shardCollection(namespace, { place: 1, _id: 1 }).ok, 1, "the same again");
assert.failsWith(() => sh.shardCollection(namespace, { other: 1 }), 23);

const chunks = () => {
  const uuid = config.collections.findOne({ _id: namespace }).uuid;
  return config.chunks.find({ uuid }).sort({ min: 1 }).toArray();
};
assert.eq(Object.keys(config.collections.findOne({ _id: namespace }).key), ["place", "_id"], "the key keeps its order");
assert.eq(chunks().length, 1, "one chunk at first");
for (const place of ["g", "n", "t"]) sh.splitAt(namespace, { place, _id: MinKey() });
assert.eq(chunks().map((chunk) => chunk.min.place), [MinKey(), "g", "n", "t"], "bounds after the splits");
assert.eq(chunks()[0].max, chunks()[1].min, "chunks tile the key space");

sh.moveChunk(namespace, { place: "h", _id: 0 }, shards[1]);
sh.moveChunk(namespace, { place: "z", _id: 0 }, shards[1]);
assert.eq(chunks().map((chunk) => chunk.shard), [shards[0], shards[1], shards[0], shards[1]], "placement");
assert.failsWith(() => sh.moveChunk(namespace, { place: "z", _id: 0 }, "nowhere"), 70);

const version = test.events.getShardVersion();
assert.eq(version.ok, 1, "getShardVersion");
assert(version.version.getHighBits() >= 2, "moves raise the major version");

test.events.insertMany(["a", "h", "o", "z"].map((place, i) => ({ _id: i, place })));
assert.eq(test.events.find().sort({ place: 1 }).toArray().map((each) => each.place), ["a", "h", "o", "z"], "all documents");
for (const host of listed) {
  const direct = new Mongo(`mongodb://${host.host.split("/")[1]}/?replicaSet=${host._id}`);
  assert.eq(direct.getDB("mongosh_sharding").events.find().toArray().length, 2, `documents on ${host._id}`);
}

const distribution = test.events.getShardDistribution().value;
assert.eq(distribution.Totals.docs, 4, "getShardDistribution: documents");
assert.eq(distribution.Totals.chunks, 4, "getShardDistribution: chunks");

sh.shardCollection("mongosh_sharding.hashed", { _id: "hashed" });
const hashed = config.collections.findOne({ _id: "mongosh_sharding.hashed" });
assert.eq(config.chunks.distinct("shard", { uuid: hashed.uuid }).sort(), shards, "hashed chunks are on every shard");

const listing = sh.status().value.databases.find((each) => each.database._id === "mongosh_sharding");
assert.eq(Object.keys(listing.collections).sort(), [namespace, "mongosh_sharding.hashed"], "sh.status()");

test.dropDatabase();
assert.eq(config.collections.findOne({ _id: namespace }), null, "dropping leaves no catalog entry");
