// Capped collections: order, size, and tailable cursors.
(function () {
  "use strict";

  const coll = db.capped_collections;
  coll.drop();
  assert.commandWorked(db.createCollection(coll.getName(), { capped: true, size: 4096, max: 5 }));
  assert(coll.isCapped());
  for (let i = 0; i < 8; i++) assert.commandWorked(coll.insert({ _id: i }));
  assert.eq(
    [3, 4, 5, 6, 7],
    coll.find().map((each) => each._id),
  );
  assert.eq(
    [7, 6, 5, 4, 3],
    coll
      .find()
      .sort({ $natural: -1 })
      .map((each) => each._id),
  );

  const cursor = coll.find({ _id: { $gte: 6 } }).tailable(false);
  assert.eq(6, cursor.next()._id);
  assert.eq(7, cursor.next()._id);
  assert(!cursor.hasNext(), "nothing more at the moment");
  assert.commandWorked(coll.insert({ _id: 8 }));
  assert.soon(() => cursor.hasNext(), "the tailable cursor sees what is new");
  assert.eq(8, cursor.next()._id);
  cursor.close();

  const plain = db.capped_converted;
  plain.drop();
  assert.commandWorked(plain.insert({ _id: 1 }));
  assert.commandWorked(plain.convertToCapped(4096));
  assert(plain.isCapped());
  assert.eq([{ _id: 1 }], plain.find().toArray());
  assert.commandFailedWithCode(db.createCollection("capped_bad", { capped: true }), ErrorCodes.InvalidOptions);
})();
