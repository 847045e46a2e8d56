// Chunk moves that wait at one of their steps.
var migrateStepNames = { deletedPriorDataInRange: 1, cloned: 3, catchup: 4, steady: 5, done: 6 };
var moveChunkStepNames = {
  parsedOptions: 1,
  gotDistLock: 2,
  startedMoveChunk: 3,
  reachedSteadyState: 4,
  chunkDataCommitted: 5,
  committed: 6,
};

// Start a move in a parallel shell; returns the function that waits for its end.
function moveChunkParallel(staticMongod, mongosUrl, find, bounds, namespace, toShard, expectSuccess = true) {
  const command = { moveChunk: namespace, to: toShard, _waitForDelete: true, ...(find ? { find } : { bounds }) };
  const code = (address, encoded, mustWork) => {
    const reply = new Mongo(address).adminCommand(encoded);
    if (mustWork) assert.commandWorked(reply);
    else assert.commandFailed(reply);
  };
  return startParallelShell(funWithArgs(code, mongosUrl, command, expectSuccess), null, true);
}

var _stepPoint = (prefix, step) => `${prefix}Step${step}`;
var pauseMoveChunkAtStep = (connection, step) => configureFailPoint(connection, _stepPoint("moveChunkHangAt", step));
var unpauseMoveChunkAtStep = (connection, step) =>
  connection.adminCommand({ configureFailPoint: _stepPoint("moveChunkHangAt", step), mode: "off" });
var pauseMigrateAtStep = (connection, step) => configureFailPoint(connection, _stepPoint("migrateThreadHangAt", step));
var unpauseMigrateAtStep = (connection, step) =>
  connection.adminCommand({ configureFailPoint: _stepPoint("migrateThreadHangAt", step), mode: "off" });
var waitForMoveChunkStep = (connection, step) =>
  assert.commandWorked(
    connection.adminCommand({
      waitForFailPoint: _stepPoint("moveChunkHangAt", step),
      timesEntered: 1,
      maxTimeMS: 600000,
    }),
  );
var waitForMigrateStep = (connection, step) =>
  assert.commandWorked(
    connection.adminCommand({
      waitForFailPoint: _stepPoint("migrateThreadHangAt", step),
      timesEntered: 1,
      maxTimeMS: 600000,
    }),
  );
