// Change streams on a sharded collection and its database: one order for both shards, resuming, and where they end.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("change_streams.c", { k: 1 }, { k: 0 });
  const mine = coll.getDB();
  const next = (stream, count) => {
    const events = [];
    assert.soon(
      () => {
        while (events.length < count && stream.hasNext()) events.push(stream.next());
        return events.length === count;
      },
      () => `${count} events, but ${tojson(events)}`,
    );
    return events;
  };
  const keys = (events) => events.map((each) => each.documentKey.k);
  const kinds = (events) => events.map((each) => each.operationType);

  const stream = coll.watch();
  const ofDatabase = mine.watch();
  for (const k of [-1, 1, -2, 2]) assert.commandWorked(coll.insert({ _id: k, k }));
  const inserted = next(stream, 4);
  assert.eq([-1, 1, -2, 2], keys(inserted));
  assert.eq({ k: -1, _id: -1 }, inserted[0].documentKey);
  for (let i = 1; i < 4; i++) assert.lt(inserted[i - 1].clusterTime, inserted[i].clusterTime);
  assert.eq(inserted, next(ofDatabase, 4));

  jsTestLog("Resumed after an event, or from its time");
  const { _id: token, clusterTime } = inserted[1];
  for (const options of [{ resumeAfter: token }, { startAfter: token }])
    assert.eq([-2, 2], keys(next(coll.watch([], options), 2)));
  assert.eq([1, -2, 2], keys(next(coll.watch([], { startAtOperationTime: clusterTime }), 3)));

  jsTestLog("Later stages see the events of both shards");
  const pipeline = [
    { $match: { "fullDocument.k": { $gt: 0 } } },
    { $project: { more: { $add: ["$fullDocument.k", 10] } } },
  ];
  const projected = coll.watch(pipeline, { startAtOperationTime: inserted[0].clusterTime });
  assert.eq(
    [11, 12],
    next(projected, 2).map((each) => each.more),
  );
  assert.throwsWithCode(() => coll.watch([{ $group: { _id: 1 } }]), ErrorCodes.IllegalOperation);

  jsTestLog("A chunk that moves is no event; what is written to it later is one");
  assert.commandWorked(sh.moveChunk(coll.getFullName(), { k: -1 }, shardIds()[1]));
  assert.commandWorked(coll.update({ k: -1 }, { $set: { v: 1 } }));
  const [updated] = next(stream, 1);
  assert.eq("update", updated.operationType);
  assert.eq({ v: 1 }, updated.updateDescription.updatedFields);
  const [lookedUp] = next(coll.watch([], { resumeAfter: inserted[3]._id, fullDocument: "updateLookup" }), 1);
  assert.eq({ _id: -1, k: -1, v: 1 }, lookedUp.fullDocument);

  jsTestLog("The end of the collection, and of the database");
  assert(coll.drop());
  assert.eq(["drop", "invalidate"], kinds(next(stream, 2)));
  assert(stream.isExhausted());
  assert.commandWorked(mine.plain.insert({ _id: 1 }));
  assert.commandWorked(mine.dropDatabase());
  assert.eq(["update", "drop", "insert", "drop", "dropDatabase", "invalidate"], kinds(next(ofDatabase, 6)));
  assert(ofDatabase.isExhausted());
})();
