// Reads and writes with the Node.js driver on a collection that was sharded on {key: 1} before.
// Arguments: connection string, database, collection.
import assert from "node:assert/strict";
import { MongoClient } from "mongodb";

const [uri, database, name] = process.argv.slice(2);
const client = new MongoClient(uri);
try {
  const collection = client.db(database).collection(name);
  const documents = Array.from({ length: 1000 }, (_, n) => ({ _id: n, key: n, group: n % 10 }));
  assert.equal((await collection.insertMany(documents)).insertedCount, 1000);

  // Reads
  assert.deepEqual(await collection.findOne({ key: 700 }), { _id: 700, key: 700, group: 0 });
  assert.equal(await collection.findOne({ key: -1 }), null);
  const sorted = await collection.find().sort({ group: -1, key: 1 }).skip(95).limit(10).toArray();
  const expected = documents.toSorted((a, b) => b.group - a.group || a.key - b.key).slice(95, 105);
  assert.deepEqual(sorted, expected);
  let seen = 0;
  for await (const document of collection.find().batchSize(33)) seen += document.key;
  assert.equal(seen, (999 * 1000) / 2);
  assert.equal(await collection.countDocuments({ group: 3 }), 100);
  const [{ count }] = await collection.aggregate([{ $collStats: { count: {} } }, { $group: { _id: 0, count: { $sum: "$count" } } }]).toArray();
  assert.equal(await collection.estimatedDocumentCount(), count);
  assert.deepEqual((await collection.distinct("group")).sort(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  assert.deepEqual(await collection.aggregate([{ $match: { key: 7 } }, { $project: { group: 1 } }]).toArray(),
                   [{ _id: 7, group: 7 }]);

  // Writes
  assert.equal((await collection.updateMany({ group: 1 }, { $set: { group: -1 } })).modifiedCount, 100);
  const upserted = await collection.updateOne({ key: 5000 }, { $set: { _id: "up" } }, { upsert: true });
  assert.equal(upserted.upsertedId, "up");
  assert.equal((await collection.findOneAndUpdate({ key: 600 }, { $inc: { group: 5 } }, { returnDocument: "after" })).group, 5);
  assert.equal((await collection.replaceOne({ key: 601 }, { key: 601, replaced: true })).modifiedCount, 1);
  assert.equal((await collection.deleteMany({ key: { $gte: 495, $lt: 505 } })).deletedCount, 10);
  await assert.rejects(collection.insertOne({ _id: 1, key: 1 }), { code: 11000 });

  const bulk = await collection.bulkWrite([
    { insertOne: { document: { _id: "low", key: 2 } } },
    { insertOne: { document: { _id: "high", key: 998 } } },
    { updateOne: { filter: { key: 20 }, update: { $set: { bulk: true } } } },
    { deleteOne: { filter: { key: 980 } } },
  ]);
  assert.deepEqual([bulk.insertedCount, bulk.modifiedCount, bulk.deletedCount], [2, 1, 1]);
  const failure = await collection.bulkWrite(
    [{ insertOne: { document: { _id: "a", key: 10 } } }, { insertOne: { document: { _id: 999, key: 999 } } },
     { insertOne: { document: { _id: "b", key: 990 } } }], { ordered: false },
  ).then(() => assert.fail("a duplicate key was accepted"), (error) => error);
  assert.deepEqual([failure.insertedCount, failure.writeErrors.map((each) => each.index)], [2, [1]]);

  // Sessions: causally consistent reads of what was written, and a cursor within a session.
  await client.withSession({ causalConsistency: true }, async (session) => {
    await collection.insertOne({ _id: "session", key: 700 }, { session });
    assert.equal((await collection.findOne({ _id: "session" }, { session })).key, 700);
    const cursor = collection.find({}, { session, batchSize: 10 });
    assert.ok(await cursor.next());
    await cursor.close();
  });

  // Many at once.
  const found = await Promise.all(Array.from({ length: 100 }, (_, n) => collection.findOne({ _id: n * 4 })));
  assert.equal(found.filter(Boolean).length, 100);

  // Aggregations over all shards.
  const everything = await collection.countDocuments();
  const groups = await collection.aggregate([
    { $match: { group: { $gte: 0 } } }, { $group: { _id: "$group", n: { $sum: 1 } } }, { $sort: { n: -1, _id: 1 } },
    { $limit: 2 }, { $lookup: { from: name, localField: "_id", foreignField: "_id", as: "same" } },
  ]).toArray();
  const largest = (await collection.find({ group: { $gte: 0 } }).toArray()).reduce(
    (counts, each) => counts.set(each.group, (counts.get(each.group) ?? 0) + 1), new Map());
  const expectedGroups = [...largest].toSorted(([a, n], [b, m]) => m - n || a - b).slice(0, 2);
  assert.deepEqual(groups.map((each) => [each._id, each.n]), expectedGroups);
  assert.deepEqual(groups.map((each) => each.same.map((same) => same._id)), groups.map((each) => [each._id]));
  await collection.aggregate([{ $match: { key: { $gte: 900 } } }, { $out: `${name}_late` }]).toArray();
  const late = client.db(database).collection(`${name}_late`);
  assert.equal(await late.countDocuments(), await collection.countDocuments({ key: { $gte: 900 } }));
  await late.aggregate([{ $set: { late: true } }, { $merge: { into: name, whenMatched: "merge" } }]).toArray();
  assert.equal(await collection.countDocuments({ late: true }), await late.countDocuments());
  const [facets] = await collection.aggregate([
    { $facet: { late: [{ $match: { late: true } }, { $count: "n" }], all: [{ $count: "n" }] } },
  ]).toArray();
  assert.deepEqual([facets.late[0].n, facets.all[0].n], [await late.countDocuments(), everything]);

  // A change stream, resumed after its first event.
  const stream = collection.watch([{ $match: { operationType: "insert" } }], { fullDocument: "updateLookup" });
  assert.equal(await stream.tryNext(), null);
  await collection.insertMany([{ _id: "x", key: 4 }, { _id: "y", key: 994 }]);
  const first = await stream.next();
  await stream.close();
  const resumed = collection.watch([{ $match: { operationType: "insert" } }], { resumeAfter: first._id });
  const second = await resumed.next();
  await resumed.close();
  assert.deepEqual([first, second].map((event) => event.fullDocument._id).sort(), ["x", "y"]);

  // Administration
  const admin = client.db("admin");
  assert.equal((await admin.command({ hello: 1 })).msg, "isdbgrid");
  assert.ok((await admin.admin().listDatabases()).databases.some((each) => each.name === database));
  assert.ok((await client.db(database).listCollections().toArray()).some((each) => each.name === name));
  await collection.createIndex({ group: 1 });
  assert.ok(await collection.indexExists("group_1"));
  await collection.dropIndex("group_1");
  const explained = await collection.find({ key: 3 }).explain();
  assert.equal(explained.queryPlanner.winningPlan.stage, "SINGLE_SHARD");
  console.log("done");
} finally {
  await client.close();
}
