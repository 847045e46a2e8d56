// A cursor that is open while chunks move returns each document once.
(function () {
  "use strict";

  load("jstests/libs/parallel_shell_helpers.js");
  load("jstests/libs/two_shards.js");

  const shards = shardIds();
  const ns = "cursors_during_moves.c";
  const coll = newDatabase("cursors_during_moves").c;
  assert.commandWorked(sh.shardCollection(ns, { _id: 1 }));
  for (const middle of [100, 200, 300]) assert.commandWorked(sh.splitAt(ns, { _id: middle }));
  const documents = [];
  for (let _id = 0; _id < 400; _id++) documents.push({ _id });
  assert.commandWorked(coll.insert(documents));

  const sorted = coll.find().sort({ _id: 1 }).batchSize(10);
  const unsorted = coll.find().batchSize(10);
  for (let i = 0; i < 10; i++) assert.eq(i, sorted.next()._id);
  const seen = new Set([unsorted.next()._id]);

  const awaitMoves = startParallelShell(
    funWithArgs(
      function (name, to) {
        for (const find of [150, 350])
          assert.commandWorked(db.adminCommand({ moveChunk: name, find: { _id: find }, to }));
      },
      ns,
      shards[1],
    ),
  );
  awaitMoves();

  for (let i = 10; i < 400; i++) assert.eq(i, sorted.next()._id);
  assert(!sorted.hasNext());
  while (unsorted.hasNext()) {
    const { _id } = unsorted.next();
    assert(!seen.has(_id), () => `${_id} came twice`);
    seen.add(_id);
  }
  assert.eq(400, seen.size);
})();
