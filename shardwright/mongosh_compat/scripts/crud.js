// Create, read, update and delete on a sharded collection with data on every shard.
const namespace = "mongosh_crud.orders";
const test = db.getSiblingDB("mongosh_crud");
test.dropDatabase();

const shards = db.adminCommand({ listShards: 1 }).shards.map((shard) => shard._id).sort();
sh.enableSharding("mongosh_crud", shards[0]);
sh.shardCollection(namespace, { customer: 1 });
sh.splitAt(namespace, { customer: 500 });
sh.moveChunk(namespace, { customer: 500 }, shards[1]);

const orders = test.orders;
const documents = [];
for (let i = 0; i < 1000; i++) documents.push({ _id: i, customer: i, total: (i * 7) % 100, tags: [i % 3, "x"] });
assert.eq(orders.insertMany(documents).acknowledged, true, "insertMany");

// Reads: targeted, by range, scattered with a merged sort, several batches.
assert.eq(orders.findOne({ customer: 700 })._id, 700, "findOne by shard key");
assert.eq(orders.find({ customer: { $gte: 498, $lt: 502 } }).sort({ customer: 1 }).toArray().map((each) => each._id),
          [498, 499, 500, 501], "a range over both shards");
assert.eq(orders.find().sort({ total: -1, _id: 1 }).skip(5).limit(3).toArray().map((each) => each._id),
          documents.toSorted((a, b) => b.total - a.total || a._id - b._id).slice(5, 8).map((each) => each._id),
          "sort, skip and limit");
assert.eq(orders.find().batchSize(7).toArray().length, 1000, "a cursor of many batches");
assert.eq(orders.distinct("total", { customer: { $lt: 4 } }), [0, 7, 14, 21], "distinct");
assert.eq(test.runCommand({ count: "orders", query: { total: { $lt: 10 } } }).n, 100, "count");

// Writes: to one shard, to all, upserts, and their results.
assert.eq(orders.updateOne({ customer: 3 }, { $set: { seen: true } }).modifiedCount, 1, "updateOne");
assert.eq(orders.updateMany({ total: 7 }, { $inc: { total: 1000 } }).modifiedCount, 10, "updateMany on both shards");
assert.eq(orders.replaceOne({ customer: 900 }, { customer: 900, replaced: true }).modifiedCount, 1, "replaceOne");
assert.eq(orders.updateOne({ customer: 5000 }, { $set: { a: 1 } }, { upsert: true }).upsertedCount, 1, "upsert");
assert.eq(orders.findOneAndUpdate({ customer: 600 }, { $inc: { total: 1 } }, { returnDocument: "after" }).total,
          (600 * 7) % 100 + 1, "findOneAndUpdate");
assert.eq(orders.deleteOne({ customer: 5000 }).deletedCount, 1, "deleteOne");
assert.eq(orders.deleteMany({ customer: { $gte: 490, $lt: 510 } }).deletedCount, 20, "deleteMany on both shards");
assert.failsWith(() => orders.insertOne({ _id: 1, customer: 1 }), 11000);

const bulk = orders.bulkWrite([
  { insertOne: { document: { _id: "a", customer: 10 } } },
  { insertOne: { document: { _id: "b", customer: 990 } } },
  { updateOne: { filter: { customer: 20 }, update: { $set: { bulk: true } } } },
  { deleteOne: { filter: { customer: 980 } } },
]);
assert.eq([bulk.insertedCount, bulk.modifiedCount, bulk.deletedCount], [2, 1, 1], "bulkWrite");

// Indexes.
orders.createIndex({ total: 1 });
assert(orders.getIndexes().some((index) => index.name === "total_1"), "createIndex");
// Ten documents had this total; customer 501 has been deleted since.
assert.eq(orders.find({ total: 1007 }).hint("total_1").toArray().length, 9, "a hint");
orders.dropIndex("total_1");
assert(!orders.getIndexes().some((index) => index.name === "total_1"), "dropIndex");

orders.drop();
assert.eq(orders.findOne(), null, "a dropped collection is empty");
test.dropDatabase();
