// Sessions: ids, retried statements, operation times, and their end.
(function () {
  "use strict";

  const session = db.getMongo().startSession({ retryWrites: true });
  const coll = session.getDatabase("test").sessions;
  coll.drop();
  assert.commandWorked(coll.insert({ _id: 1 }));
  assert.neq(null, session.getSessionId().id);
  assert.neq(null, session.getOperationTime());
  assert.eq({ _id: 1 }, coll.findOne(), "a causally consistent read sees the write");

  jsTestLog("A statement that is sent twice is executed once");
  const lsid = { id: UUID() };
  const insert = { insert: coll.getName(), documents: [{ _id: 2 }], lsid, txnNumber: NumberLong(1) };
  const first = assert.commandWorked(db.runCommand(insert));
  const second = assert.commandWorked(db.runCommand(insert));
  assert.eq([1, 1], [first.n, second.n]);
  assert.eq(1, coll.count({ _id: 2 }));
  const increment = {
    update: coll.getName(),
    updates: [{ q: { _id: 2 }, u: { $inc: { n: 1 } } }],
    lsid,
    txnNumber: NumberLong(2),
  };
  for (let i = 0; i < 3; i++) assert.commandWorked(db.runCommand(increment));
  assert.eq(1, coll.findOne({ _id: 2 }).n);
  assert.commandFailedWithCode(db.runCommand(insert), ErrorCodes.TransactionTooOld);
  assert.commandFailedWithCode(
    db.runCommand({ insert: coll.getName(), documents: [{ _id: 3 }], txnNumber: NumberLong(1) }),
    [ErrorCodes.InvalidOptions, 50768],
  );

  jsTestLog("The default session of a connection is causally consistent on request");
  const mongo = new Mongo(db.getMongo().host);
  const reads = mongo.getDB(db.getName()).getCollection(coll.getName());
  assert.eq([false, false], [mongo._causalConsistency, mongo.isCausalConsistency()]);
  mongo.setCausalConsistency(true);
  assert.eq([true, true], [mongo._causalConsistency, mongo.isCausalConsistency()]);
  assert.commandWorked(reads.insert({ _id: 4 }));
  assert.eq(1, reads.find({ _id: 4 }).readPref("secondaryPreferred").itcount());
  const later = new Timestamp(mongo.getDB("test").getSession().getOperationTime().t + 24 * 60 * 60, 0);
  const tooLate = { count: coll.getName(), readConcern: { afterClusterTime: later } };
  assert.commandFailedWithCode(mongo.getDB(db.getName()).runCommand(tooLate), ErrorCodes.InvalidOptions);

  session.endSession();
  assert(session.hasEnded());
  assert.throws(() => coll.findOne());
})();
