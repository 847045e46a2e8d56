// Every helper of collections and of cursors, on a collection that is sharded over two shards, where MongoDB allows it.
const test = db.getSiblingDB("mongosh_helpers_collection");
test.dropDatabase();
const shards = db.adminCommand({ listShards: 1 }).shards.map((shard) => shard._id).sort();
sh.enableSharding(test.getName(), shards[0]);
sh.shardCollection(`${test.getName()}.c`, { k: 1 });
sh.splitAt(`${test.getName()}.c`, { k: 50 });
sh.moveChunk(`${test.getName()}.c`, { k: 50 }, shards[1]);
const c = test.c;
const of = (...keys) => keys.map((k) => ({ _id: k, k, even: k % 2 === 0 }));

// Names
assert.eq([c.getName(), c.getFullName(), c.getDB().getName()], ["c", "mongosh_helpers_collection.c", test.getName()], "names");
assert(c.getMongo().getDBNames().includes(test.getName()), "getMongo");
assert(c.help().attr.length > 10, "help");

// Inserts, updates and removals
assert.eq(c.insertMany(of(...Array(90).keys())).acknowledged, true, "insertMany");
assert.eq(c.insertOne(of(90)[0]).insertedId, 90, "insertOne");
assert.eq(c.insert(of(91)).acknowledged, true, "insert");
assert.eq(c.bulkWrite([{ insertOne: { document: of(92)[0] } }, { deleteOne: { filter: { k: 92 } } }]).deletedCount, 1, "bulkWrite");
assert.eq(c.updateOne({ k: 1 }, { $set: { a: 1 } }).modifiedCount, 1, "updateOne");
assert.eq(c.updateMany({ even: true }, { $set: { a: 2 } }).modifiedCount, 46, "updateMany");
assert.eq(c.update({ k: 3 }, { $set: { a: 3 } }).modifiedCount, 1, "update");
assert.eq(c.replaceOne({ k: 5 }, { k: 5, a: 5 }).modifiedCount, 1, "replaceOne");
assert.eq(c.findAndModify({ query: { k: 7 }, update: { $set: { a: 7 } }, new: true }).a, 7, "findAndModify");
assert.eq(c.findOneAndUpdate({ k: 9 }, { $set: { a: 9 } }, { returnDocument: "after" }).a, 9, "findOneAndUpdate");
assert.eq(c.findOneAndReplace({ k: 11 }, { k: 11, a: 11 }, { returnDocument: "after" }).a, 11, "findOneAndReplace");
assert.eq(c.findOneAndDelete({ k: 13 }).k, 13, "findOneAndDelete");
assert.eq(c.deleteOne({ k: 15 }).deletedCount, 1, "deleteOne");
assert.eq(c.deleteMany({ k: { $in: [17, 67] } }).deletedCount, 2, "deleteMany");
assert.eq(c.remove({ k: 19 }, { justOne: true }).deletedCount, 1, "remove");
const ordered = c.initializeOrderedBulkOp();
ordered.insert(of(13)[0]);
ordered.find({ k: 60 }).updateOne({ $set: { a: 60 } });
assert.eq([ordered.execute().insertedCount], [1], "initializeOrderedBulkOp");
const unordered = c.initializeUnorderedBulkOp();
unordered.insert(of(15)[0]);
unordered.insert(of(67)[0]);
assert.eq(unordered.execute().insertedCount, 2, "initializeUnorderedBulkOp");

// Reads
assert.eq(c.countDocuments({ even: true }), 46, "countDocuments");
assert.eq(c.estimatedDocumentCount(), 90, "estimatedDocumentCount");
assert.eq(c.count({ k: { $lt: 5 } }), 5, "count");
assert.eq(c.distinct("even").filter((each) => each !== undefined).sort(), [false, true], "distinct");
assert.eq(c.findOne({ k: 60 }).a, 60, "findOne");
assert.eq(c.find({ k: { $gte: 88 } }).toArray().map((each) => each.k).sort(), [88, 89, 90, 91], "find");
assert.eq(c.aggregate([{ $match: { even: true } }, { $sort: { k: -1 } }, { $limit: 2 }, { $project: { _id: 1 } }]).toArray(), [{ _id: 90 }, { _id: 88 }], "aggregate");
assert.eq(c.explain().find({ k: 60 }).finish().queryPlanner.winningPlan.stage, "SINGLE_SHARD", "explain");
assert.eq(c.runCommand("count").n, 90, "runCommand");
const reduced = c.mapReduce(function () { emit(this.even === true, 1); }, function (key, values) { return Array.sum(values); }, { out: { inline: 1 } });
assert.eq(reduced.results.map((each) => [each._id, each.value]).sort(), [[false, 44], [true, 46]], "mapReduce");

// Indexes
assert.eq(c.createIndex({ a: 1 }), "a_1", "createIndex");
assert.eq(c.createIndexes([{ b: 1 }, { d: -1 }]), ["b_1", "d_-1"], "createIndexes");
assert.eq(c.ensureIndex({ e: 1 }), ["e_1"], "ensureIndex");
const names = ["_id_", "k_1", "a_1", "b_1", "d_-1", "e_1"].sort();
for (const list of ["getIndexes", "getIndices", "getIndexSpecs"])
  assert.eq(c[list]().map((index) => index.name).sort(), names, list);
assert.eq(c.getIndexKeys().length, 6, "getIndexKeys");
assert.eq(c.hideIndex("b_1").ok, 1, "hideIndex");
assert.eq(c.getIndexes().find((index) => index.name === "b_1").hidden, true, "a hidden index");
assert.eq(c.unhideIndex("b_1").ok, 1, "unhideIndex");
assert.eq(c.dropIndex("b_1").ok, 1, "dropIndex");
assert.eq(c.dropIndexes(["d_-1", "e_1"]).ok, 1, "dropIndexes");
assert.eq(c.getIndexes().length, 3, "indexes that are left");

// Statistics
const stats = c.stats();
assert.eq([stats.sharded, stats.count, Object.keys(stats.shards).sort()], [true, 90, shards], "stats");
assert.eq(c.isCapped(), false, "isCapped");
assert.eq(c.exists().name, "c", "exists");
assert.eq(c.latencyStats().map((each) => each.shard).sort(), shards, "latencyStats");
assert.eq(c.validate().valid, true, "validate");
assert.eq(c.getShardVersion().ok, 1, "getShardVersion");
assert.eq(Object.keys(c.getShardDistribution().value).filter((key) => key.startsWith("Shard ")).length, 2, "getShardDistribution");
for (const size of ["dataSize", "storageSize", "totalIndexSize", "totalSize"]) assert(c[size]() > 0, size);
c.find({ a: 2 }).toArray();
assert.eq(c.getPlanCache().clear().ok, 1, "getPlanCache");

// Cursors
const cursor = () => c.find({ k: { $lt: 60 } });
assert.eq(cursor().sort({ k: -1 }).skip(5).limit(3).projection({ _id: 1 }).toArray(), [{ _id: 54 }, { _id: 53 }, { _id: 52 }], "sort, skip, limit, projection");
assert.eq(cursor().count(), 58, "count of a cursor");
assert.eq(cursor().limit(7).size(), 7, "size");
assert.eq(cursor().batchSize(10).itcount(), 58, "batchSize and itcount");
assert.eq(cursor().sort({ k: 1 }).map((each) => each.k).next(), 0, "map and next");
let sum = 0;
cursor().forEach((each) => { sum += each.k; });
assert.eq(sum, (59 * 60) / 2 - 17 - 19, "forEach");
assert.eq(cursor().hint({ k: 1 }).min({ k: 40 }).max({ k: 45 }).returnKey().itcount(), 5, "hint, min, max, returnKey");
assert.eq(cursor().sort({ even: 1 }).collation({ locale: "en" }).comment("helpers").allowDiskUse().maxTimeMS(60000).hasNext(), true, "hasNext");
assert.eq(cursor().readConcern("majority").readPref("primary").allowPartialResults().itcount(), 58, "readConcern, readPref");
assert.eq(typeof cursor().showRecordId().next().$recordId !== "undefined", true, "showRecordId");
assert(cursor().explain().queryPlanner, "explain of a cursor");
const open = cursor().sort({ k: 1 }).batchSize(2);
assert.eq([open.tryNext().k, open.objsLeftInBatch()], [0, 1], "tryNext and objsLeftInBatch");
assert.eq([open.isClosed(), open.isExhausted()], [false, false], "isClosed and isExhausted");
open.close();
const whole = cursor();
whole.toArray();
assert.eq([whole.isClosed(), whole.isExhausted()], [true, true], "a cursor that was read to its end");
assert(cursor().pretty().toArray().length > 0, "pretty");
assert.eq(cursor().addOption(128).itcount(), 58, "addOption");
test.createCollection("capped", { capped: true, size: 10000 });
test.capped.insertMany(of(1, 2));
assert.eq(test.capped.find().tailable().tryNext().k, 1, "tailable");
assert.eq(test.capped.find().tailable({ awaitData: true }).maxAwaitTimeMS(10).tryNext().k, 1, "maxAwaitTimeMS");

// Changes on both shards
const stream = c.watch([{ $project: { operationType: 1, "fullDocument.k": 1 } }]);
c.insertMany(of(17, 98));
assert.eq([stream.next(), stream.next()].map((each) => each.fullDocument.k).sort(), [17, 98], "watch");
stream.close();

// Unsharded collections
test.plain.insertOne({ a: 1 });
assert.eq(test.plain.renameCollection("renamed").ok, 1, "renameCollection");
assert.eq(test.renamed.convertToCapped(10000).ok, 1, "convertToCapped");
assert.eq(test.renamed.isCapped(), true, "the converted collection");
assert.failsWith(() => c.convertToCapped(10000), 20);
assert.eq(c.drop(), true, "drop");
test.dropDatabase();
