// Plans: of finds, counts, distincts, updates and deletes, and how they show the shards that are asked.
(function () {
  "use strict";

  load("jstests/libs/analyze_plan.js");

  const coll = db.explain;
  coll.drop();
  assert.commandWorked(coll.createIndex({ a: 1 }));
  for (let i = 0; i < 50; i++) assert.commandWorked(coll.insert({ _id: i, a: i % 10 }));

  const plan = coll.find({ a: 3 }).explain();
  assert(isIxscan(db, plan.queryPlanner.winningPlan), () => tojson(plan));
  assert(isCollscan(db, coll.find({ b: 1 }).explain().queryPlanner.winningPlan));
  assert.eq(1, plan.queryPlanner.winningPlan.shards.length, "an unsharded collection has one shard");

  const run = coll.explain("executionStats").find({ a: 3 }).sort({ _id: 1 }).finish();
  assert.eq(5, run.executionStats.nReturned);
  assert.eq(5, run.executionStats.totalKeysExamined);

  assertExplainCount({ explainResults: coll.explain("executionStats").count({ a: 1 }), expectedCount: 5 });
  assertExplainCount({ explainResults: coll.explain("executionStats").count(), expectedCount: 50 });
  const some = db.runCommand({ explain: { count: coll.getName(), query: { a: { $gt: 1 } }, skip: 3, limit: 2 } });
  assertExplainCount({ explainResults: some, expectedCount: 2 });

  const explainable = coll.explain();
  assert.eq("queryPlanner", explainable.getVerbosity());
  assert.commandWorked(explainable.count({ a: 1 }));
  assert.commandWorked(explainable.distinct("a"));
  assert.commandWorked(explainable.update({ a: 1 }, { $set: { b: 1 } }));
  assert.commandWorked(explainable.remove({ a: 1 }));
  assert.commandWorked(explainable.findAndModify({ query: { _id: 1 }, update: { $set: { c: 1 } } }));
  assert.commandWorked(explainable.aggregate([{ $match: { a: 1 } }]));
  assert.eq(50, coll.count(), "an explained write changes nothing");
  assert.eq(0, coll.count({ b: 1 }));

  assert.commandFailedWithCode(
    db.runCommand({ explain: { find: coll.getName() }, verbosity: "chatty" }),
    ErrorCodes.BadValue,
  );
  assert.commandFailedWithCode(db.runCommand({ explain: { noSuchCommand: 1 } }), ErrorCodes.CommandNotFound);
})();
