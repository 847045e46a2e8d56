// Transactions over two shards: what others see, conflicts, errors that abort, and collections that they create.
// @tags: [uses_transactions, uses_multi_shard_transaction]
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("transactions.accounts", { k: 1 }, { k: 0 });
  for (const k of [-1, 1]) assert.commandWorked(coll.insert({ _id: k, k, v: 10 }));
  const values = () => coll.find().sort({ k: 1 }).map((each) => each.v);

  const session = db.getMongo().startSession();
  const mine = session.getDatabase("transactions");
  const transfer = (amount) => {
    assert.commandWorked(mine.accounts.update({ k: -1 }, { $inc: { v: -amount } }));
    assert.commandWorked(mine.accounts.update({ k: 1 }, { $inc: { v: amount } }));
  };

  session.startTransaction({ readConcern: { level: "snapshot" }, writeConcern: { w: "majority" } });
  transfer(3);
  assert.eq([10, 10], values(), "seen by others before the commit");
  assert.eq([7, 13], mine.accounts.find().sort({ k: 1 }).map((each) => each.v), "seen in the transaction");
  assert.commandFailedWithCode(
    db.getSiblingDB("transactions").runCommand({ update: "accounts", updates: [{ q: { k: 1 }, u: { $set: { v: 0 } } }], maxTimeMS: 300 }),
    ErrorCodes.MaxTimeMSExpired,
    "a write outside waits",
  );
  session.commitTransaction();
  assert.eq([7, 13], values());

  session.startTransaction();
  transfer(3);
  session.abortTransaction();
  assert.eq([7, 13], values(), "nothing is left of it");

  session.startTransaction();
  transfer(3);
  assert.writeErrorWithCode(mine.accounts.insert({ _id: -1, k: -1 }), ErrorCodes.DuplicateKey);
  assert.commandFailedWithCode(session.commitTransaction_forTesting(), ErrorCodes.NoSuchTransaction);
  assert.eq([7, 13], values(), "an error aborts it on both shards");

  session.startTransaction();
  assert.commandWorked(mine.createCollection("made"));
  assert.commandWorked(mine.made.insert({ _id: 1 }));
  session.commitTransaction();
  assert.eq(1, db.getSiblingDB("transactions").made.count());

  session.startTransaction();
  assert.commandWorked(mine.other.insert({ _id: 1 }));
  assert.commandWorked(mine.accounts.update({ k: 1 }, { $inc: { v: 1 } }));
  assert.commandFailedWithCode(
    session.commitTransaction_forTesting(),
    ErrorCodes.OperationNotSupportedInTransaction,
    "two writing shards, one of which has created a collection",
  );
  assert.eq([7, 13], values());
  session.endSession();
})();
