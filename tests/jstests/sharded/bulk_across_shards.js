// Bulk writes whose operations go to several shards, and the places of their errors.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const coll = newCollectionInHalves("bulk_across_shards.c", { _id: 1 }, { _id: 500 });

  const documents = [];
  for (let i = 0; i < 1000; i++) documents.push({ _id: (i * 7) % 1000 });
  assert.eq(1000, coll.insert(documents).nInserted);

  jsTestLog("Unordered: all that can be written is, and each error has its place");
  const mixed = [{ _id: 1001 }, { _id: 3 }, { _id: -1 }, { _id: 700 }, { _id: 1002 }];
  const unordered = coll.insert(mixed, { ordered: false });
  assert.eq(3, unordered.nInserted);
  assert.eq(
    [1, 3],
    unordered
      .getWriteErrors()
      .map((each) => each.index)
      .sort(),
  );

  jsTestLog("Ordered: nothing after the first error, on whichever shard");
  const ordered = coll.insert([{ _id: 2001 }, { _id: 4 }, { _id: 2002 }]);
  assert.eq(1, ordered.nInserted);
  assert.eq(
    [1],
    ordered.getWriteErrors().map((each) => each.index),
  );
  assert.eq(0, coll.count({ _id: 2002 }));

  const bulk = coll.initializeUnorderedBulkOp();
  for (let i = 0; i < 1000; i += 100) bulk.find({ _id: i }).updateOne({ $set: { hundred: true } });
  bulk.find({ hundred: { $exists: false }, _id: { $lt: 10 } }).remove();
  bulk
    .find({ _id: 5000 })
    .upsert()
    .updateOne({ $set: { new: true } });
  const result = bulk.execute();
  assert.eq([10, 1], [result.nModified, result.nUpserted]);
  assert.eq({ index: 11, _id: 5000 }, result.getUpsertedIdAt(0));
  assert.eq(10, coll.count({ hundred: true }));
})();
