"use strict";
// The parameters of ShardingTest, as options of `shardwright up`.
const { unsupported } = require("../errors.js");
const { parametersIn } = require("./server_parameters.js");

// What a cluster can be started with, by the names of the old shell.
const OF_CLUSTERS = new Set([
  ...["name", "testName", "other", "shards", "mongos", "config", "c", "rs", "numReplicas", "chunkSize", "chunksize"],
  ...["shardOptions", "rsOptions", "mongosOptions", "configOptions", "configReplSetTestOptions"],
  ...["enableBalancer", "enableAutoSplit", "migrationLockAcquisitionMaxWaitMS"],
]);
const OF_SERVERS = new Set(["setParameter"]);
const OF_SETS = new Set(["setParameter", "nodes", "nodeOptions"]);

// Options that change nothing that a suite could see: logs, disk space, how the old fixtures wait.
const WITHOUT_EFFECT = new Set([
  ...["verbose", "v", "quiet", "logpath", "journal", "nojournal", "noprealloc", "smallfiles", "oplogSize", "syncdelay"],
  ...["useHostname", "useHostName", "protocolVersion", "waitForKeys", "initiateTimeout", "shardAsReplicaSet"],
  ...["shardsvr", "configsvr", "port", "causallyConsistent", "writeConcernMajorityJournalDefault"],
]);
const SET_MEMBERS = 3;
const OF_ONE_SERVER = /^(rs|s|d|c)\d+$/;

const TEST_COMMANDS = [
  ...["--set-parameter", "enableTestCommands=1"],
  ...["--set-parameter", "diagnosticDataCollectionEnabled=false"],
];

// As the old shell starts its servers: documents that were given away are deleted soon.
const SHARD_DEFAULTS = { orphanCleanupDelaySecs: 1 };

// Returns {name, launcherOptions, routerParameters, chunkSizeMB, enableBalancer, enableAutoSplit}.
function parseOptions(parameters) {
  const given =
    typeof parameters[0] === "string" || typeof parameters[1] === "number"
      ? positional(parameters)
      : (parameters[0] ?? {});
  const options = { ...given.other, ...given };
  refuseWhatIsNotApplied(options);
  refuseParametersOfConfigServers(options);
  const shards = countOf(options.shards ?? 2);
  if (shards === 0) unsupported("ShardingTest without shards");
  const routers = countOf(options.mongos ?? 1);
  const sizes = {
    "--shards": shards,
    "--members": membersOf(options, shards),
    "--config-members": countOf(configOf(options)),
    "--routers": routers,
  };
  return {
    name: options.name ?? options.testName ?? "test",
    launcherOptions: [
      ...Object.entries(sizes).flatMap(([name, number]) => [name, String(number)]),
      ...TEST_COMMANDS,
      ...parametersOfShards(options),
    ],
    routerParameters: parametersOfRouters(options, routers),
    chunkSizeMB: options.chunkSize ?? options.chunksize,
    enableBalancer: Boolean(options.enableBalancer),
    enableAutoSplit: Boolean(options.enableAutoSplit ?? options.enableBalancer),
  };
}

const positional = ([name, shards, , mongos, other]) => ({
  name,
  ...(shards === undefined ? {} : { shards }),
  ...(mongos === undefined ? {} : { mongos }),
  ...other,
});

// A suite that asks for anything else must not run as if it had got it.
function refuseWhatIsNotApplied(options) {
  const others = Object.fromEntries(Object.entries(options).filter(([name]) => !OF_ONE_SERVER.test(name)));
  refuseOthers("ShardingTest", others, OF_CLUSTERS);
  const { shardOptions, rsOptions, rs, mongosOptions, configOptions, configReplSetTestOptions } = options;
  const named = (prefix) => Object.keys(options).filter((name) => new RegExp(`^${prefix}\\d+$`).test(name));
  const sets = [shardOptions, rsOptions, rs, ...listed(options.shards), ...named("rs|d").map((name) => options[name])];
  const configSets = [configReplSetTestOptions, configReplSetTestOptions?.nodeOptions, configOptions];
  const configServers = [...listed(options.config), ...listed(options.c), ...named("c").map((name) => options[name])];
  const routers = [mongosOptions, ...listed(options.mongos), ...named("s").map((name) => options[name])];
  for (const each of [...sets, ...configSets]) refuseOthers("a shard or config server", each, OF_SETS);
  for (const each of [...configServers]) refuseOthers("a config server", each, OF_SERVERS);
  for (const each of routers) refuseOthers("a router", each, OF_SERVERS);
  for (const each of [...sets, configReplSetTestOptions])
    for (const member of listed(each?.nodes)) refuseOthers("a member of a set", member, new Set());
}

function refuseOthers(what, given, applied) {
  if (given === null || typeof given !== "object") return;
  for (const [name, value] of Object.entries(given)) {
    const isSet = value !== undefined && value !== null && value !== false;
    if (isSet && !applied.has(name) && !WITHOUT_EFFECT.has(name)) unsupported(`${what} with ${name}`);
  }
}

// The entries of an option that has one for each process; none if it is a number.
const listed = (value) => (value !== null && typeof value === "object" ? Object.values(value) : []);

// A number, or one entry for each process.
function countOf(value) {
  if (typeof value === "number") return value;
  return Array.isArray(value) ? value.length : Object.keys(value).length;
}

function configOf(options) {
  const nodes = options.configReplSetTestOptions?.nodes ?? options.config ?? options.c ?? 1;
  return nodes === 0 ? 1 : nodes;
}

// A shard has one member, or three if it is asked to be a replica set of no particular size. All have as many as the
// largest.
function membersOf(options, shards) {
  const named = Array.isArray(options.shards) ? {} : Object(options.shards);
  const numbered = Array.from({ length: shards }, (_, index) => options[`rs${index}`] ?? named[`rs${index}`]);
  const sizes = [options.rs, ...numbered]
    .filter(Boolean)
    .map((each) => each.nodes ?? options.rs?.nodes ?? options.rsOptions?.nodes ?? options.numReplicas ?? SET_MEMBERS);
  const ofOthers = [options.rsOptions, ...listed(options.shards)].map((each) => each?.nodes ?? 1);
  return Math.max(1, ...[...sizes, ...ofOthers].map(countOf));
}

// The server parameters of the shards.
function parametersOfShards(options) {
  const given = parametersIn([options.shardOptions, options.rsOptions, options.rs, options.rs0, options.rs1]);
  const { migrationLockAcquisitionMaxWaitMS } = options;
  const ofMigrations = migrationLockAcquisitionMaxWaitMS === undefined ? {} : { migrationLockAcquisitionMaxWaitMS };
  const kept = Object.entries({ ...SHARD_DEFAULTS, ...ofMigrations, ...given });
  return kept.flatMap(([name, value]) => [
    "--set-parameter",
    `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`,
  ]);
}

// The server parameters of each router.
function parametersOfRouters(options, routers) {
  const each = listed(options.mongos);
  return Array.from({ length: routers }, (_, index) =>
    parametersIn([options.mongosOptions, each[index], options[`s${index}`]]),
  );
}

function refuseParametersOfConfigServers(options) {
  const { configOptions, configReplSetTestOptions } = options;
  const servers = [...listed(options.config), ...listed(options.c)];
  const places = [configOptions, configReplSetTestOptions, configReplSetTestOptions?.nodeOptions, ...servers];
  const names = Object.keys(parametersIn(places));
  if (names.length > 0) unsupported(`config servers with the parameter ${names}`);
}

module.exports = { parseOptions };
