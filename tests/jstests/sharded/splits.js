// Splitting and merging chunks.
(function () {
  "use strict";

  load("jstests/libs/find_chunks_util.js");

  const ns = "splits.c";
  const config = db.getSiblingDB("config");
  assert.commandWorked(db.getSiblingDB("splits").dropDatabase());
  assert.commandWorked(sh.enableSharding("splits"));
  assert.commandWorked(sh.shardCollection(ns, { a: 1, b: 1 }));
  assert.eq(1, findChunksUtil.countChunksForNs(config, ns));

  assert.commandWorked(sh.splitAt(ns, { a: 10, b: MinKey }));
  assert.commandWorked(sh.splitAt(ns, { a: 10, b: 5 }));
  assert.commandWorked(sh.splitAt(ns, { a: 20, b: 0 }));
  const bounds = findChunksUtil
    .findChunksByNs(config, ns)
    .sort({ min: 1 })
    .map((each) => each.min);
  assert.eq(
    [
      { a: MinKey, b: MinKey },
      { a: 10, b: MinKey },
      { a: 10, b: 5 },
      { a: 20, b: 0 },
    ],
    bounds,
  );

  const admin = db.getSiblingDB("admin");
  assert.commandFailed(sh.splitAt(ns, { a: 20, b: 0 }), "a bound already");
  assert.commandFailed(sh.splitAt(ns, { a: 5 }), "not the whole key");
  assert.commandFailed(admin.runCommand({ split: ns, middle: { a: 1, b: 1 }, find: { a: 1, b: 1 } }));
  assert.commandFailedWithCode(
    admin.runCommand({ split: "splits.none", middle: { a: 1 } }),
    ErrorCodes.NamespaceNotSharded,
  );

  const merged = [
    { a: 10, b: MinKey },
    { a: 20, b: 0 },
  ];
  assert.commandWorked(admin.runCommand({ mergeChunks: ns, bounds: merged }));
  assert.eq(3, findChunksUtil.countChunksForNs(config, ns));
  assert.commandWorked(admin.runCommand({ mergeChunks: ns, bounds: merged }), "merged already");
  assert.commandFailed(
    admin.runCommand({
      mergeChunks: ns,
      bounds: [
        { a: 11, b: 0 },
        { a: 20, b: 0 },
      ],
    }),
    "not a bound",
  );

  const coll = db.getMongo().getCollection(ns);
  for (let i = 0; i < 100; i++) assert.commandWorked(coll.insert({ a: 100 + i, b: i }));
  assert.commandWorked(sh.splitFind(ns, { a: 150, b: 0 }));
  assert.eq(4, findChunksUtil.countChunksForNs(config, ns), "split at the median");
})();
