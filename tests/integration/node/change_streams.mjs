// Change streams with the Node.js driver on a collection that was sharded on {key: 1} before; keys below 500 are on one
// shard. Arguments: connection strings of two routers, database, collection; the collection is dropped.
import assert from "node:assert/strict";
import { MongoClient } from "mongodb";

const [firstUri, secondUri, database, name] = process.argv.slice(2);
const client = new MongoClient(firstUri, { monitorCommands: true });
const other = new MongoClient(secondUri);
const events = client.db(database).collection(name);

const take = async (stream, count) => {
  const taken = [];
  while (taken.length < count) taken.push(await stream.next());
  return taken;
};
const kinds = (taken) => taken.map((event) => [event.operationType, event.documentKey._id]);

try {
  // Changes of both shards in their order, of a collection, a database, and all of them.
  const streams = [events.watch([], { fullDocument: "updateLookup" }), client.db(database).watch(), client.watch()];
  for (const stream of streams) assert.equal(await stream.tryNext(), null);
  for (const key of [100, 900, 101, 901]) await events.insertOne({ _id: key, key });
  await events.updateOne({ key: 900 }, { $set: { state: "new" } });
  await events.replaceOne({ key: 100 }, { key: 100, replaced: true });
  await events.deleteOne({ key: 101 });
  const expected = [
    ["insert", 100], ["insert", 900], ["insert", 101], ["insert", 901],
    ["update", 900], ["replace", 100], ["delete", 101],
  ];
  const [watched] = await Promise.all(streams.map(async (stream) => {
    const taken = await take(stream, expected.length);
    assert.deepEqual(kinds(taken), expected);
    assert.deepEqual(taken[4].updateDescription.updatedFields, { state: "new" });
    await stream.close();
    return taken;
  }));
  assert.deepEqual(watched[4].fullDocument, { _id: 900, key: 900, state: "new" });

  // From any event on, at either router, by its token or by its time.
  for (const [index, event] of watched.entries()) {
    const rest = expected.slice(index + 1);
    for (const reader of [client, other]) {
      for (const start of [{ resumeAfter: event._id }, { startAfter: event._id }]) {
        const resumed = reader.db(database).collection(name).watch([], start);
        assert.deepEqual(kinds(await take(resumed, rest.length)), rest);
        await resumed.close();
      }
    }
  }
  const since = other.db(database).collection(name).watch([], { startAtOperationTime: watched[2].clusterTime });
  assert.deepEqual(kinds(await take(since, 5)), expected.slice(2));
  await since.close();

  // By itself, with events as they come: the driver opens the stream anew when its cursor is lost, and none is missed.
  const aggregates = [];
  client.on("commandStarted", ({ command }) => { if (command.aggregate) aggregates.push(command); });
  const last = watched.at(-1)._id;
  const filter = [{ $match: { operationType: { $in: ["insert", "delete"] } } }];
  const followed = events.watch(filter, { resumeAfter: last, maxAwaitTimeMS: 100 });
  const got = [];
  const all = new Promise((resolve, reject) => {
    followed.on("error", reject);
    followed.on("change", (event) => { if (got.push(event.fullDocument.key) === 20) resolve(); });
  });
  for (const key of Array.from({ length: 20 }, (_, n) => 200 + 40 * n)) {
    if (key === 400) {
      await client.db("admin").command({
        configureFailPoint: "failCommand", mode: { times: 1 },
        data: { failCommands: ["getMore"], errorCode: 6, errorLabels: ["ResumableChangeStreamError"] },
      });
    }
    await other.db(database).collection(name).insertOne({ key });
  }
  await all;
  assert.deepEqual(got, Array.from({ length: 20 }, (_, n) => 200 + 40 * n));
  await followed.close();
  assert.equal(aggregates.length, 2);
  const [before, after] = aggregates.map(({ pipeline }) => pipeline[0].$changeStream.resumeAfter);
  assert.deepEqual(before, last);
  assert.ok(after._data > before._data);

  // A drop ends a stream of the collection; after its last event another one can start.
  const ended = events.watch();
  assert.equal(await ended.tryNext(), null);
  await events.drop();
  assert.equal((await ended.next()).operationType, "drop");
  const invalidate = await ended.next();
  assert.equal(invalidate.operationType, "invalidate");
  await assert.rejects(ended.next(), { message: "ChangeStream is closed" });
  await assert.rejects(events.watch([], { resumeAfter: invalidate._id }).next(), { code: 260 });
  const renewed = events.watch([], { startAfter: invalidate._id });
  assert.equal(await renewed.tryNext(), null);
  await events.insertOne({ _id: "again", key: 1 });
  assert.equal((await renewed.next()).fullDocument._id, "again");
  await renewed.close();
  console.log("done");
} finally {
  await Promise.all([client.close(), other.close()]);
}
