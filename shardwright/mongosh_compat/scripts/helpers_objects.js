// Every helper of connections, sessions, bulk operations, explainable collections, plan caches and change streams, on a
// collection that is sharded over two shards.
const name = "mongosh_helpers_objects";
const test = db.getSiblingDB(name);
test.dropDatabase();
const shards = db.adminCommand({ listShards: 1 }).shards.map((shard) => shard._id).sort();
sh.enableSharding(name, shards[0]);
sh.shardCollection(`${name}.c`, { k: 1 });
sh.splitAt(`${name}.c`, { k: 50 });
sh.moveChunk(`${name}.c`, { k: 50 }, shards[1]);
const c = test.c;
c.insertMany(Array.from({ length: 100 }, (_, k) => ({ _id: k, k, even: k % 2 === 0 })));

// Connections
const uri = db.getMongo().getURI();
const mongo = Mongo(uri);
mongo.connect();
assert.eq(mongo.getURI(), uri, "getURI");
assert.eq(mongo.getDB(name).getName(), name, "getDB");
assert.eq(mongo.getCollection(`${name}.c`).countDocuments({ k: { $lt: 60 } }), 60, "getCollection");
assert(mongo.getDBs().databases.some((each) => each.name === name), "getDBs");
assert(mongo.getDBNames().includes(name), "getDBNames");
assert(mongo.show("dbs").value.some((each) => each.name === name), "show");
assert.includes(db.getMongo().use(db.getName()), db.getName());
mongo.setReadPref("secondaryPreferred", [{}]);
assert.eq(mongo.getReadPrefMode(), "secondaryPreferred", "setReadPref and getReadPrefMode");
assert.eq(mongo.getReadPref().mode, "secondaryPreferred", "getReadPref");
assert.eq(mongo.getReadPrefTagSet(), [{}], "getReadPrefTagSet");
mongo.setReadPref("primary");
mongo.setSecondaryOk();
assert.eq(mongo.getReadPrefMode(), "primaryPreferred", "setSecondaryOk");
mongo.setReadConcern("majority");
assert.eq(mongo.getReadConcern(), "majority", "setReadConcern and getReadConcern");
mongo.setWriteConcern({ w: "majority" });
assert.eq(mongo.getWriteConcern().w, "majority", "setWriteConcern and getWriteConcern");
assert.eq(mongo.getDB(name).c.find({ k: 70 }).next()._id, 70, "a read with all of these");
assert(mongo.help().attr.length > 10, "help");
mongo.close();
const key = { k: NumberLong("7") };
assert.eq(convertShardKeyToHashed(7), db.getMongo().convertShardKeyToHashed(7), "convertShardKeyToHashed");
assert(convertShardKeyToHashed(key.k) instanceof Long, "a hash of the server");

// Sessions
const session = db.getMongo().startSession({ causalConsistency: true });
const mine = session.getDatabase(name).c;
assert.eq(session.getOptions().causalConsistency, true, "getOptions");
assert.eq(mine.updateMany({ k: { $in: [10, 90] } }, { $set: { seen: true } }).modifiedCount, 2, "a write in a session");
assert.eq(mine.countDocuments({ seen: true }), 2, "a read in a session");
assert(session.getOperationTime() instanceof Timestamp, "getOperationTime");
assert(session.getClusterTime().clusterTime instanceof Timestamp, "getClusterTime");
const other = db.getMongo().startSession();
other.advanceOperationTime(session.getOperationTime());
other.advanceClusterTime(session.getClusterTime());
assert.eq(other.getDatabase(name).c.find({ seen: true }).readPref("secondaryPreferred").itcount(), 2, "advanceOperationTime");
assert(other.help().attr.length > 5, "help of sessions");
assert.eq(other.hasEnded(), false, "hasEnded");
other.endSession();
session.endSession();
assert.eq(session.hasEnded(), true, "endSession");

// Bulk operations
const bulk = () => c.initializeOrderedBulkOp();
const changes = bulk();
changes.insert({ _id: 100, k: 100 });
changes.find({ k: 100 }).upsert().updateOne({ $set: { a: 1 } });
changes.find({ k: { $lt: 3 } }).update({ $set: { a: 2 } });
changes.find({ k: 3 }).replaceOne({ k: 3, words: ["Ink", "pen"] });
changes.find({ k: 3, words: "INK" }).collation({ locale: "en", strength: 2 }).updateOne({ $set: { a: 3 } });
changes.find({ k: 3 }).arrayFilters([{ word: "pen" }]).update({ $set: { "words.$[word]": "map" } });
changes.find({ k: 4 }).hint({ k: 1 }).updateOne({ $set: { a: 4 } });
changes.find({ k: 5 }).delete();
changes.find({ k: 6 }).deleteOne();
changes.find({ k: 7 }).remove();
changes.find({ k: 8 }).removeOne();
assert.eq(changes.toJSON().nInsertOps, 1, "toJSON");
assert.includes(changes.toString(), "nInsertOps");
const done = changes.execute();
assert.eq([done.insertedCount, done.modifiedCount, done.deletedCount], [1, 8, 4], "execute");
assert.eq(changes.getOperations().at(-1).operations.length, 4, "getOperations");
assert.eq(c.findOne({ k: 3 }, { _id: 0 }), { k: 3, words: ["Ink", "map"], a: 3 }, "collation and arrayFilters");
for (const each of [bulk(), bulk().find({})]) assert(each.help().attr.length > 4, "help of bulk operations");

// Explanations
const explained = c.explain();
assert.eq(explained.getCollection().getFullName(), `${name}.c`, "getCollection of an explanation");
explained.setVerbosity("executionStats");
assert.eq(explained.getVerbosity(), "executionStats", "setVerbosity and getVerbosity");
assert.eq(explained.find({ k: { $gte: 40, $lt: 60 } }).finish().executionStats.nReturned, 20, "explain find");
assert.includes(JSON.stringify(explained.find({}).finish()), "SHARD_MERGE");
assert.eq(Object.keys(explained.aggregate([{ $group: { _id: "$even" } }]).shards).sort(), shards, "explain aggregate");
assert.eq(explained.count({ k: 60 }).queryPlanner.winningPlan.stage, "SINGLE_SHARD", "explain count");
assert.includes(JSON.stringify(explained.distinct("even")), "SHARD_MERGE");
const written = {
  findAndModify: () => explained.findAndModify({ query: { k: 60 }, update: { $set: { b: 1 } } }),
  findOneAndDelete: () => explained.findOneAndDelete({ k: 60 }),
  findOneAndReplace: () => explained.findOneAndReplace({ k: 60 }, { k: 60 }),
  findOneAndUpdate: () => explained.findOneAndUpdate({ k: 60 }, { $set: { b: 1 } }),
  remove: () => explained.remove({ k: 60 }),
  update: () => explained.update({ k: 60 }, { $set: { b: 1 } }),
};
for (const [operation, explain] of Object.entries(written)) {
  const plan = explain().queryPlanner.winningPlan;
  assert.eq([plan.stage, plan.shards.map((shard) => shard.shardName)], [["findAndModify", "findOneAndDelete",
    "findOneAndReplace", "findOneAndUpdate"].includes(operation) ? "SINGLE_SHARD" : "SHARD_WRITE", [shards[1]]], operation);
}
assert.eq(c.countDocuments({ b: 1 }), 0, "nothing was written");
assert(explained.mapReduce(function () { emit(this.k, 1); }, function (k, values) { return 1; }, { out: { inline: 1 } }), "mapReduce");
assert(explained.help().attr.length > 5, "help of explanations");

// Plan caches of both shards
c.createIndexes([{ even: 1, k: 1 }, { even: 1, a: 1 }]);
for (let n = 0; n < 3; n++) c.find({ even: true, a: { $gt: 1 }, k: { $lt: 90 } }).toArray();
const plans = c.getPlanCache();
assert.eq([...new Set(plans.list().map((plan) => plan.shard))].sort(), shards, "list");
assert.eq(plans.clearPlansByQuery({ even: true, a: { $gt: 1 }, k: { $lt: 90 } }).ok, 1, "clearPlansByQuery");
assert.eq(plans.list(), [], "nothing is cached");
assert.eq(plans.clear().ok, 1, "clear");
assert(plans.help().attr.length > 2, "help of plan caches");

// Change streams of a collection, a database and the cluster
const inserts = [{ $match: { operationType: "insert", "ns.db": name } }];
const streams = [c.watch(inserts), test.watch(inserts), db.getMongo().watch(inserts)];
for (const stream of streams) stream.disableBlockWarnings();
for (const stream of streams) assert.eq([stream.tryNext(), stream.isClosed()], [null, false], "a stream without events");
c.insertMany([1000, 1001, 1002, 1003].map((_id) => ({ _id, k: _id - 980 * (_id % 2) })));
for (const stream of streams) {
  const first = stream.next();
  assert.eq([first.operationType, stream.getResumeToken()], ["insert", first._id], "next and getResumeToken");
  const found = [first.fullDocument._id];
  stream.map((event) => event.fullDocument._id).pretty();
  assert.eq(stream.hasNext(), true, "hasNext");
  found.push(stream.next(), stream.next());
  stream.forEach((_id) => {
    found.push(_id);
    return false;
  });
  assert.eq(found.sort(), [1000, 1001, 1002, 1003], "all events");
  assert(stream.help().attr.length > 5, "help of streams");
  stream.close();
  assert.eq(stream.isClosed(), true, "close");
}
test.dropDatabase();
