// Sessions, retryable writes, transactions and snapshots on a collection with data on two shards.
const namespace = "mongosh_transactions.accounts";
const test = db.getSiblingDB("mongosh_transactions");
test.dropDatabase();

const shards = db.adminCommand({ listShards: 1 }).shards.map((shard) => shard._id).sort();
sh.enableSharding("mongosh_transactions", shards[0]);
sh.shardCollection(namespace, { owner: 1 });
sh.splitAt(namespace, { owner: 50 });
sh.moveChunk(namespace, { owner: 50 }, shards[1]);

const accounts = test.accounts;
accounts.insertMany([...Array(100).keys()].map((owner) => ({ _id: owner, owner, balance: 10 })));
const total = (collection) => collection.aggregate([{ $group: { _id: null, sum: { $sum: "$balance" } } }]).next().sum;
const balance = (owner) => accounts.findOne({ owner }).balance;

function transfer(collection, from, to, amount) {
  assert.eq(collection.updateOne({ owner: from }, { $inc: { balance: -amount } }).modifiedCount, 1, "withdraw");
  assert.eq(collection.updateOne({ owner: to }, { $inc: { balance: amount } }).modifiedCount, 1, "deposit");
}

// A transaction on both shards becomes visible as a whole, at its commit.
const session = db.getMongo().startSession({ causalConsistency: true });
const mine = session.getDatabase("mongosh_transactions").accounts;
session.startTransaction({ readConcern: { level: "snapshot" }, writeConcern: { w: "majority" } });
transfer(mine, 1, 99, 4);
assert.eq([balance(1), balance(99)], [10, 10], "before the commit");
assert.eq(total(mine), 1000, "in the transaction");
session.commitTransaction();
assert.eq([balance(1), balance(99)], [6, 14], "after the commit");

// An aborted transaction leaves no changes.
session.startTransaction();
transfer(mine, 2, 98, 4);
session.abortTransaction();
assert.eq([balance(2), balance(98)], [10, 10], "after the abort");

// An error aborts it on both shards.
session.startTransaction();
mine.updateOne({ owner: 97 }, { $inc: { balance: 1 } });
assert.failsWith(() => mine.insertOne({ _id: 3, owner: 3 }), 11000);
const ended = assert.failsWith(() => mine.findOne({ owner: 97 }), 251);
assert(ended.errorLabels.includes("TransientTransactionError"), "the label of an aborted transaction");
session.abortTransaction();
assert.eq(balance(97), 10, "after an error");

// A conflict is transient, and withTransaction runs the function again.
const other = db.getMongo().startSession();
const theirs = other.getDatabase("mongosh_transactions").accounts;
session.startTransaction();
mine.updateOne({ owner: 5 }, { $inc: { balance: 1 } });
let attempts = 0;
other.withTransaction(() => {
  attempts++;
  try {
    transfer(theirs, 5, 95, 1);
  } catch (error) {
    if (attempts === 1) session.commitTransaction();
    throw error;
  }
});
assert(attempts > 1, "withTransaction has run the function again");
assert.eq([balance(5), balance(95), total(accounts)], [10, 11, 1001], "after both");

// An update that changes the owner of a document, in a transaction and as a retryable write.
session.withTransaction(() => {
  assert.eq(mine.updateOne({ owner: 10 }, { $set: { owner: 110 } }).modifiedCount, 1, "a changed shard key");
});
assert.eq(accounts.findOne({ owner: 110 })._id, 10, "the document has moved");
assert.eq(accounts.updateOne({ owner: 110 }, { $set: { owner: 10 } }).modifiedCount, 1, "and back");

// A retryable write over both shards is executed once, however often it is sent.
const write = {
  update: "accounts",
  updates: [0, 90].map((owner) => ({ q: { owner }, u: { $inc: { balance: 5 } } })),
  lsid: { id: UUID() },
  txnNumber: Long(1),
};
assert.eq(test.runCommand(write).nModified, 2, "a retryable write");
const retried = test.runCommand(write);
assert.eq([retried.nModified, retried.retriedStmtIds], [2, [0, 1]], "its retry");
assert.eq([balance(0), balance(90)], [15, 15], "once each");

// Snapshots outside of transactions.
const snapshot = db.getMongo().startSession({ snapshot: true });
const then = snapshot.getDatabase("mongosh_transactions").accounts;
assert.eq(total(then), 1011, "a snapshot");
accounts.updateMany({}, { $inc: { balance: 1 } });
assert.eq([total(then), then.find({ balance: { $gt: 100 } }).itcount()], [1011, 0], "the same snapshot");
assert.eq(total(accounts), 1111, "the present");

for (const each of [session, other, snapshot]) each.endSession();
test.dropDatabase();
