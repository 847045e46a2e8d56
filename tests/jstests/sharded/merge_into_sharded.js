// $merge into a sharded collection: what it does with documents that are there, and with those that are not.
(function () {
  "use strict";

  load("jstests/libs/two_shards.js");

  const source = newCollectionInHalves("merge_into_sharded.source", { k: 1 }, { k: 0 });
  const mine = source.getDB();
  const target = shardInHalves(mine.target, { t: 1 }, { t: 10 });
  for (let k = -10; k < 10; k++) assert.commandWorked(source.insert({ _id: k, k }));

  // Documents of the source as the target has them, but for half of those on each shard of the source.
  const asTarget = (fields) => ({ $project: { t: { $add: ["$k", 10] }, ...fields } });
  const even = { $match: { $expr: { $eq: [{ $mod: ["$k", 2] }, 0] } } };
  const values = () => target.find().sort({ t: 1 }).map((each) => each.v);
  const merge = (fields, options, ...before) =>
    source.aggregate([...before, asTarget(fields), { $merge: { into: "target", ...options } }]).itcount();
  const alternating = (even, odd) => Array.from({ length: 20 }, (_, index) => (index % 2 === 0 ? even : odd));

  assert.eq(0, merge({ v: { $literal: 1 } }, {}), "it has no results");
  assert.eq(alternating(1, 1), values());
  for (const shard of db.getSiblingDB("config").shards.find().toArray())
    assert.eq(10, new Mongo(shard.host).getCollection("merge_into_sharded.target").find().itcount());

  jsTestLog("Matched documents");
  merge({ w: { $literal: 2 } }, { whenMatched: "merge" }, even);
  assert.eq(10, target.find({ v: 1, w: 2 }).itcount(), "both fields");
  merge({ v: { $literal: 3 } }, { whenMatched: "replace" }, even);
  assert.eq(alternating(3, 1), values());
  assert.eq(0, target.find({ w: 2 }).itcount(), "the whole document");
  merge({ v: { $literal: 4 } }, { whenMatched: "keepExisting" });
  assert.eq(alternating(3, 1), values());
  merge({ v: { $literal: 5 } }, { whenMatched: [{ $set: { v: { $add: ["$v", "$$new.v"] } } }] });
  assert.eq(alternating(8, 6), values());
  assert.throwsWithCode(() => merge({}, { whenMatched: "fail" }), ErrorCodes.DuplicateKey);

  jsTestLog("Documents without a match");
  assert.commandWorked(target.remove({ v: 6 }));
  merge({ v: { $literal: 9 } }, { whenNotMatched: "discard" });
  assert.eq(Array(10).fill(9), values());
  assert.throwsWithCode(() => merge({}, { whenNotMatched: "fail" }), ErrorCodes.MergeStageNoMatchingDocument);
  merge({ v: { $literal: 10 } }, { whenNotMatched: "insert" });
  assert.eq(alternating(10, 10), values());

  jsTestLog("What identifies documents must be there");
  assert.throwsWithCode(() => source.aggregate([{ $project: { v: 1 } }, { $merge: { into: "target" } }]), 51132);
  assert.eq(20, target.find().itcount());
})();
