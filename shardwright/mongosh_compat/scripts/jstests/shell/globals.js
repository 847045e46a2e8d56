"use strict";
// The global names of the old shell.
const { assert } = require("./assert/assert.js");
const { locate: _, ...filesOfSuites } = require("./files.js");
const { authutil } = require("./authutil.js");
const binary = require("./bson_binary.js");
const errors = require("./errors.js");
const extensions = require("./extensions.js");
const order = require("./bson_order.js");
const parallel = require("./parallel.js");
const printing = require("./tojson.js");
const types = require("./bson_types.js");
const { friendlyEqual } = require("./assert/equality.js");
const { formatErrorMsg } = require("./assert/failing.js");
const { MongoRunner, allocatePorts } = require("./cluster/mongo_runner.js");
const { ShardingTest, stopAll } = require("./cluster/sharding_test.js");
const { ReplSetTest, stopAllSets } = require("./cluster/repl_set_test.js");
const { hashedKeyValue } = require("./cluster/hashed_key.js");
const { printShardingStatus } = require("./cluster/sharding_status.js");
const { Bulk } = require("./collection/bulk.js");
const { DBCollection } = require("./collection/collection.js");
const { DBCommandCursor } = require("./collection/command_cursor.js");
const { Explainable } = require("./collection/explainable.js");
const { PlanCache } = require("./collection/plan_cache.js");
const { OldQuery } = require("./collection/query.js");
const { MongoURI } = require("./connection/address.js");
const { DB } = require("./connection/database.js");
const { getActiveCommands } = require("./connection/database_admin.js");
const { Mongo, closeAll, connect } = require("./connection/mongo.js");
const { DriverSession } = require("./connection/session.js");
const { rs, sh } = require("./sh.js");

const { _getErrorWithCode, doassert, unsupported, NetworkError, ...otherErrors } = errors;
const { callEncoded, ...threads } = parallel;

// Any server can answer; the newest connection is the most likely to be open.
function convertShardKeyToHashed(value) {
  const connection = [...Mongo.open].at(-1);
  assert(connection, "convertShardKeyToHashed needs a connection");
  return hashedKeyValue(connection, value);
}

// A function that calls `action` and returns false in place of an error.
const _convertExceptionToReturnStatus = (action) => () => {
  try {
    return action();
  } catch (error) {
    if (error?.isQuit) throw error;
    return false;
  }
};

const buildEnvironment = { ccflags: "", cxxflags: "", target_os: "linux" };
const buildInfo = () => ({ version: "6.0.5", debug: false, buildEnvironment, modules: [] });

// The feature compatibility versions of 6.0 and of the releases before it.
const versions = { latestFCV: "6.0", lastContinuousFCV: "5.3", lastLTSFCV: "5.0" };

const names = {
  ...require("./unavailable.js"),
  ...types,
  ...binary,
  ...order,
  ...printing,
  ...otherErrors,
  ...threads,
  ...extensions,
  ...require("./autocomplete.js"),
  ...require("./check_log.js"),
  ...require("./fail_points.js"),
  ...filesOfSuites,
  ...require("./js_test.js"),
  ...require("./random.js"),
  rs,
  sh,
  ...require("./write_results.js"),
  WriteConcern: require("./write_concern.js").WriteConcern,
  ...versions,
  _convertExceptionToReturnStatus,
  _getErrorWithCode,
  assert,
  authutil,
  formatErrorMsg,
  doassert,
  friendlyEqual,
  ShardingTest,
  ReplSetTest,
  MongoRunner,
  printShardingStatus: (config, isVerbose) =>
    printShardingStatus(config ?? globalThis.db.getSiblingDB("config"), isVerbose),
  convertShardKeyToHashed,
  Bulk,
  DB,
  DBCollection,
  DBCommandCursor,
  DBExplainable: Explainable,
  DBQuery: OldQuery,
  DriverSession,
  Explainable,
  Mongo,
  MongoURI,
  PlanCache,
  getActiveCommands,
  allocatePort: () => allocatePorts(1)[0],
  allocatePorts,
  resetAllocatedPorts: () => undefined,
  connect,
  sleep: (milliseconds) => host.sleep(Number(milliseconds)),
  quit: (code = 0) => host.quit(code),
  exit: (code = 0) => host.quit(code),
  gc: () => undefined,
  version: () => "6.0.5",
  isInteractive: () => false,
  _isWindows: () => false,
  testingReplication: false,
  _isAddressSanitizerActive: () => false,
  _getEnv: () => "",
  _rand: () => require("./random.js").Random.rand(),
  _isSpiderMonkeyDebugEnabled: () => false,
  getBuildInfo: buildInfo,
  buildInfo,
  shellHelper: require("./shell_helper.js").shellHelper,
};

for (const [name, value] of Object.entries(names)) {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}
// Other spellings.
Object.assign(globalThis, { ObjectID: names.ObjectId, bsonObjToArray: Object.values, bsonsize: Object.bsonsize });
Object.defineProperty(globalThis, "console", {
  value: { log: names.print, error: names.print, warn: names.print },
  writable: true,
});

if (host.settings.compat) require("./compat.js").install(Mongo);

if (host.settings.uri !== undefined && host.settings.uri !== null)
  globalThis.db = new Mongo(host.settings.uri).getDB("test");

function finish() {
  stopAll();
  stopAllSets();
  closeAll();
}

module.exports = { callEncoded, finish };
