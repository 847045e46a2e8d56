// Sessions and transactions with the Node.js driver on a collection that was sharded on {key: 1} before; keys below 500
// are on one shard. Arguments: connection string of all routers, those of two of them, database, collection.
import assert from "node:assert/strict";
import { MongoClient, MongoError } from "mongodb";

const [uri, firstUri, secondUri, database, name] = process.argv.slice(2);
const options = { monitorCommands: true };
const client = new MongoClient(uri, options);
const [first, second] = [new MongoClient(firstUri, options), new MongoClient(secondUri, options)];
const of = (each) => each.db(database).collection(name);
const accounts = of(client);

const balances = async (session) => {
  const found = await accounts.find({}, { session }).sort({ key: 1 }).toArray();
  return found.map((each) => each.balance);
};
const transfer = async (collection, amount, session) => {
  await collection.updateOne({ key: 100 }, { $inc: { balance: -amount } }, { session });
  await collection.updateOne({ key: 900 }, { $inc: { balance: amount } }, { session });
};
// The commands of one name that a client sends while something runs.
const sent = async (sender, commandName, run) => {
  const commands = [];
  const listener = (event) => { if (event.commandName === commandName) commands.push(event.command); };
  sender.on("commandStarted", listener);
  try {
    await run();
  } finally {
    sender.off("commandStarted", listener);
  }
  return commands;
};

try {
  // A transaction over both shards is seen as a whole, and by nobody else before.
  await client.withSession(async (session) => {
    // In the session, as the driver tells the other router of no time that one has seen without a session.
    const opened = [{ _id: "low", key: 100, balance: 100 }, { _id: "high", key: 900, balance: 0 }];
    await accounts.insertMany(opened, { session });
    const result = await session.withTransaction(async () => {
      await transfer(accounts, 10, session);
      assert.deepEqual(await balances(session), [90, 10]);
      assert.deepEqual(await balances(), [100, 0]);
      return "transferred";
    }, { readConcern: { level: "snapshot" }, writeConcern: { w: "majority" } });
    assert.equal(result, "transferred");
    assert.deepEqual(await balances(), [90, 10]);

    // What the callback throws ends it without a trace, and the session can be used again.
    const mine = new Error("changed my mind");
    await assert.rejects(session.withTransaction(async () => {
      await transfer(accounts, 50, session);
      throw mine;
    }), mine);
    assert.equal(session.inTransaction(), false);
    assert.deepEqual(await balances(), [90, 10]);

    // So does an error of the server.
    await assert.rejects(session.withTransaction(async () => {
      await transfer(accounts, 50, session);
      await accounts.insertOne({ _id: "low", key: 100 }, { session });
    }), { code: 11000 });
    assert.deepEqual(await balances(), [90, 10]);

    // By hand
    session.startTransaction();
    await transfer(accounts, 5, session);
    await session.abortTransaction();
    assert.deepEqual(await balances(), [90, 10]);
    session.startTransaction();
    await transfer(accounts, 5, session);
    await session.commitTransaction();
    await session.commitTransaction(); // once more, as after a lost reply
    assert.deepEqual(await balances(), [85, 15]);

    // Whatever else takes a session
    await session.withTransaction(async () => {
      const bulk = await accounts.bulkWrite([
        { insertOne: { document: { _id: "new low", key: 101, balance: 1 } } },
        { insertOne: { document: { _id: "new high", key: 901, balance: 2 } } },
        { updateMany: { filter: { key: { $gt: 100 } }, update: { $inc: { balance: 1 } } } },
      ], { session });
      assert.deepEqual([bulk.insertedCount, bulk.modifiedCount], [2, 3]);
      const total = [{ $group: { _id: null, balance: { $sum: "$balance" } } }];
      const [sum] = await accounts.aggregate(total, { session }).toArray();
      assert.equal(sum.balance, 106);
      const cursor = accounts.find({}, { session, batchSize: 1 });
      assert.equal((await cursor.toArray()).length, 4);
      assert.equal((await accounts.findOneAndDelete({ key: 101 }, { session })).balance, 2);
      assert.equal((await accounts.deleteMany({ key: 901 }, { session })).deletedCount, 1);
      assert.equal(await accounts.countDocuments({}, { session }), 2);
    });
    assert.deepEqual(await balances(), [85, 16]);
  });

  // An ended session takes its transaction along.
  const abandoned = client.startSession();
  abandoned.startTransaction();
  await transfer(accounts, 50, abandoned);
  await abandoned.endSession();
  assert.deepEqual(await balances(), [85, 16]);

  // Transactions in each other's way are tried again until all are through, by whichever router.
  let attempts = 0;
  const transferOne = (session) => session.withTransaction(async () => {
    attempts += 1;
    await transfer(accounts, 1, session);
  });
  await Promise.all(Array.from({ length: 8 }, () => client.withSession(transferOne)));
  assert.deepEqual(await balances(), [77, 24]);
  assert.ok(attempts >= 8);

  // A transient error has the driver call back once more, a lost reply has it commit once more: see its fail points.
  const failOnce = (data) => first.db("admin").command({ configureFailPoint: "failCommand", mode: { times: 1 }, data });
  await first.withSession(async (session) => {
    let calls = 0;
    await failOnce({ failCommands: ["update"], errorCode: 112, errorLabels: ["TransientTransactionError"] });
    await session.withTransaction(async () => {
      calls += 1;
      await transfer(of(first), 1, session);
    });
    assert.equal(calls, 2);
    await failOnce({ failCommands: ["commitTransaction"], closeConnection: true });
    const commits = await sent(first, "commitTransaction", () => session.withTransaction(async () => {
      calls += 1;
      await transfer(of(first), 1, session);
    }));
    assert.equal(calls, 3);
    assert.equal(commits.length, 2);
    assert.deepEqual(commits[1].txnNumber, commits[0].txnNumber);
    assert.ok(commits[1].recoveryToken);
  });
  assert.deepEqual(await balances(), [75, 26]);

  // An error without a label is the application's.
  await first.withSession(async (session) => {
    await failOnce({ failCommands: ["update"], errorCode: 2 });
    await assert.rejects(session.withTransaction(() => transfer(of(first), 1, session)), (error) =>
      error instanceof MongoError && error.code === 2 && !error.hasErrorLabel("TransientTransactionError"));
  });

  // Causal consistency: a read names the time of the write before it, and so does that of another client that is told.
  await first.withSession({ causalConsistency: true }, async (writer) => {
    await of(first).updateOne({ key: 900 }, { $set: { note: "seen" } }, { session: writer });
    const written = writer.operationTime;
    const [own] = await sent(first, "find", () => of(first).findOne({ key: 900 }, { session: writer }));
    assert.deepEqual(own.readConcern.afterClusterTime, written);
    await second.withSession({ causalConsistency: true }, async (reader) => {
      reader.advanceClusterTime(writer.clusterTime);
      reader.advanceOperationTime(written);
      const [told] = await sent(second, "find", async () => {
        const read = await of(second).findOne({ key: 900 }, { session: reader, readPreference: "secondaryPreferred" });
        assert.equal(read.note, "seen");
      });
      assert.deepEqual(told.readConcern.afterClusterTime, written);
      assert.ok(reader.operationTime.greaterThanOrEqual(written));
    });
  });
  await client.withSession({ causalConsistency: false }, async (session) => {
    await accounts.findOne({ key: 900 }, { session });
    const [read] = await sent(client, "find", () => accounts.findOne({ key: 900 }, { session }));
    assert.equal(read.readConcern?.afterClusterTime, undefined);
  });

  // A snapshot session goes on reading one moment of both shards.
  await client.withSession({ snapshot: true }, async (session) => {
    assert.deepEqual(await balances(session), [75, 26]);
    await accounts.updateMany({}, { $set: { balance: 0 } });
    assert.deepEqual(await balances(session), [75, 26]);
    assert.equal(await accounts.countDocuments({ balance: 0 }, { session }), 0);
  });
  assert.deepEqual(await balances(), [0, 0]);
  console.log("done");
} finally {
  await Promise.all([client, first, second].map((each) => each.close()));
}
