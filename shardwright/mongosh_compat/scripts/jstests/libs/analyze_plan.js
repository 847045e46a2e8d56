// Reading the plans that explain returns, from one server or from several shards.
var _planChildren = (stage) =>
  [
    stage.inputStage,
    stage.thenStage,
    stage.elseStage,
    stage.outerStage,
    stage.innerStage,
    ...(stage.inputStages ?? []),
  ].filter(Boolean);

// All stages of this name below `root`.
function getPlanStages(root, name) {
  const own = root.stage === name ? [root] : [];
  const shards = (root.shards ?? []).map((each) => each.winningPlan ?? each.executionStages).filter(Boolean);
  const inner = root.queryPlan ? [root.queryPlan] : [];
  return own.concat(...[..._planChildren(root), ...shards, ...inner].map((each) => getPlanStages(each, name)));
}

function getPlanStage(root, name) {
  const found = getPlanStages(root, name);
  assert(found.length < 2, () => `more than one ${name} in ${tojson(root)}`);
  return found.length === 0 ? null : found[0];
}

var planHasStage = (db, root, name) => getPlanStages(root, name).length > 0;
var isIxscan = (db, root) => planHasStage(db, root, "IXSCAN");
var isCollscan = (db, root) => planHasStage(db, root, "COLLSCAN");
var isIdhack = (db, root) => planHasStage(db, root, "IDHACK");
var isIndexOnly = (db, root) => !planHasStage(db, root, "FETCH") && !planHasStage(db, root, "COLLSCAN");

var getWinningPlan = (queryPlanner) => queryPlanner.winningPlan.queryPlan ?? queryPlanner.winningPlan;

// Asserts the result of a count, on one server or summed over several shards.
function assertExplainCount({ explainResults, expectedCount }) {
  const root = explainResults.executionStats.executionStages;
  const counts = (root.shards?.map((shard) => shard.executionStages) ?? [root]).map((stage) => {
    assert.contains(stage.stage, ["COUNT", "RECORD_STORE_FAST_COUNT"], tojson(root));
    return stage.nCounted;
  });
  assert.eq(Array.sum(counts), expectedCount, tojson(root));
}
