// Batches, getMore, killCursors and the cursors of commands.
(function () {
  "use strict";

  const coll = db.cursors;
  coll.drop();
  const documents = [];
  for (let i = 0; i < 500; i++) documents.push({ _id: i, filler: "x".repeat(100) });
  assert.commandWorked(coll.insert(documents));

  const cursor = coll.find().sort({ _id: 1 }).batchSize(7);
  assert(cursor.hasNext());
  assert.eq(7, cursor.objsLeftInBatch());
  for (let i = 0; i < 7; i++) assert.eq(i, cursor.next()._id);
  assert.eq(0, cursor.objsLeftInBatch());
  assert.eq(7, cursor.next()._id);
  assert.eq(6, cursor.objsLeftInBatch());
  assert.eq(492, cursor.itcount());
  assert(cursor.isExhausted());
  assert.throws(() => cursor.next());

  let reply = assert.commandWorked(db.runCommand({ find: coll.getName(), batchSize: 0 }));
  assert.eq([], reply.cursor.firstBatch);
  assert.neq(0, reply.cursor.id);
  const commandCursor = new DBCommandCursor(db, reply, 100);
  assert.eq(500, commandCursor.itcount());

  reply = assert.commandWorked(db.runCommand({ find: coll.getName(), batchSize: 2 }));
  const killed = assert.commandWorked(
    db.runCommand({ killCursors: coll.getName(), cursors: [reply.cursor.id, NumberLong(12345)] }),
  );
  assert.eq([reply.cursor.id], killed.cursorsKilled);
  assert.eq([NumberLong(12345)], killed.cursorsNotFound);
  assert.commandFailedWithCode(
    db.runCommand({ getMore: reply.cursor.id, collection: coll.getName() }),
    ErrorCodes.CursorNotFound,
  );

  jsTestLog("A single batch closes the cursor, and so does a limit that it reaches");
  reply = assert.commandWorked(db.runCommand({ find: coll.getName(), batchSize: 5, singleBatch: true }));
  assert.eq(NumberLong(0), reply.cursor.id);
  assert.eq(10, coll.find().limit(10).batchSize(3).itcount());
  assert.eq(3, coll.find().limit(-3).itcount());

  assert.commandFailedWithCode(db.runCommand({ find: coll.getName(), batchSize: -1 }), [51024, ErrorCodes.BadValue]);
  assert.commandFailedWithCode(db.runCommand({ find: coll.getName(), skip: -1 }), [51024, ErrorCodes.BadValue]);
  assert.eq(
    [0, 1],
    coll
      .find({}, { _id: 1 })
      .sort({ _id: 1 })
      .limit(2)
      .toArray()
      .map((each) => each._id),
  );
  coll.find().batchSize(2).close();
})();
