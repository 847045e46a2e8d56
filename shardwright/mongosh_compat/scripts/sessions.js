// Sessions: their commands, causal consistency, snapshots, and the effects of ending a session.
const name = "mongosh_sessions";
const namespace = `${name}.events`;
const mongo = db.getMongo();
const admin = mongo.getDB("admin");
const test = mongo.getDB(name);
test.dropDatabase();

const shards = db.adminCommand({ listShards: 1 }).shards.map((shard) => shard._id).sort();
sh.enableSharding(name, shards[0]);
sh.shardCollection(namespace, { place: 1 });
sh.splitAt(namespace, { place: 50 });
sh.moveChunk(namespace, { place: 50 }, shards[1]);
test.events.insertMany([...Array(100).keys()].map((place) => ({ _id: place, place, n: 0 })));

// The commands
const started = test.runCommand({ startSession: 1 });
assert.eq([started.ok, started.timeoutMinutes], [1, 30], "startSession");
assert.eq(test.runCommand({ refreshSessions: [started.id] }).ok, 1, "refreshSessions");
const local = () => admin.aggregate([{ $listLocalSessions: {} }]).toArray().map((each) => each._id.id.toString());
assert(local().includes(started.id.id.toString()), "$listLocalSessions has the new session");
assert.eq(test.runCommand({ endSessions: [started.id] }).ok, 1, "endSessions");
for (const command of ["endSessions", "refreshSessions", "killSessions"]) {
  assert.eq(test.runCommand({ [command]: [] }).ok, 1, `${command} of none`);
  assert.failsWith(() => test.runCommand({ [command]: [{ id: 5 }] }), 14);
}
assert.failsWith(() => test.runCommand({ killAllSessions: [{ user: "nobody", db: "nowhere" }] }), 11);

// Reads of a session
const events = (session) => session.getDatabase(name).events;
const begun = (session, options) => {
  session.startTransaction(options);
  events(session).updateMany({ place: { $in: [1, 99] } }, { $inc: { n: 1 } });
  return session;
};
const counted = () => test.events.find({ n: { $gt: 0 } }).itcount();

// Killed sessions lose their cursors and transactions.
const uid = HexData(0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
const killers = {
  killSessions: (id) => [id],
  killAllSessionsByPattern: (id) => [{ lsid: { ...id, uid } }],
  killAllSessions: () => [],
};
for (const [command, argument] of Object.entries(killers)) {
  const session = begun(mongo.startSession());
  const reading = mongo.startSession();
  const cursor = events(reading).find().sort({ place: 1 }).batchSize(10);
  assert.eq(cursor.next().place, 0, "a cursor");
  for (const each of [session, reading]) assert.eq(test.runCommand({ [command]: argument(each.id) }).ok, 1, command);
  const lost = assert.failsWith(() => session.commitTransaction(), 251);
  assert(lost.errorLabels.includes("TransientTransactionError"), `${command}: the label of a killed transaction`);
  assert.failsWith(() => cursor.toArray(), 43);
  assert.eq(counted(), 0, `${command}: nothing was committed`);
  for (const each of [session, reading]) each.endSession();
}

// Ending a session aborts its transaction.
const ended = begun(mongo.startSession());
ended.endSession();
assert(ended.hasEnded(), "hasEnded");
assert.eq(counted(), 0, "after the end of the session");

// Causal consistency: a session that has advanced to the times of another one reads its writes.
const writing = mongo.startSession({ causalConsistency: true });
events(writing).updateOne({ place: 99 }, { $inc: { n: 1 } });
assert(writing.getOptions().causalConsistency, "the option");
const reading = mongo.startSession({ causalConsistency: true, readConcern: { level: "majority" } });
reading.advanceClusterTime(writing.getClusterTime());
reading.advanceOperationTime(writing.getOperationTime());
assert.eq(reading.getOperationTime(), writing.getOperationTime(), "the time of the session");
assert.eq(events(reading).findOne({ place: 99 }).n, 1, "a causally consistent read");
assert.eq(events(reading).countDocuments({ n: 1 }), 1, "one that is merged");
assert.eq(events(reading).find().sort({ place: 1 }).itcount(), 100, "and a sorted one");

// withTransaction commits the function's changes, and aborts if it throws.
writing.withTransaction(() => events(writing).updateMany({}, { $inc: { n: 1 } }), {
  readConcern: { level: "snapshot" },
  writeConcern: { w: "majority" },
});
assert.eq(counted(), 100, "after the transaction");
try {
  writing.withTransaction(() => {
    events(writing).deleteMany({});
    throw new Error("changed my mind");
  });
} catch (error) {
  assert.eq(error.message, "changed my mind");
}
assert.eq(test.events.countDocuments(), 100, "after the aborted transaction");

// A snapshot session reads both shards at one time.
const snapshot = mongo.startSession({ snapshot: true });
const sum = (collection) => collection.aggregate([{ $group: { _id: null, n: { $sum: "$n" } } }]).next().n;
assert.eq([sum(events(snapshot)), events(snapshot).find({ n: 1 }).itcount()], [101, 99], "a snapshot");
test.events.updateMany({}, { $inc: { n: 1 } });
assert.eq([sum(events(snapshot)), sum(test.events)], [101, 201], "the snapshot, and the present");

for (const each of [writing, reading, snapshot]) each.endSession();
test.dropDatabase();
