"use strict";
// The parameters of ShardingTest, as options of `shardwright up`.
const { unsupported } = require("../errors.js");
const { isKeyFile } = require("./members.js");
const { parametersIn } = require("./server_parameters.js");

// The supported options of a cluster, by the names of the old shell.
const OF_CLUSTERS = new Set([
  ...["name", "testName", "other", "shards", "mongos", "config", "c", "rs", "numReplicas", "chunkSize", "chunksize"],
  ...["shardOptions", "rsOptions", "mongosOptions", "configOptions", "configReplSetTestOptions"],
  ...["enableBalancer", "enableAutoSplit", "migrationLockAcquisitionMaxWaitMS", "manualAddShard"],
  ...["keyFile", "auth"],
]);
const OF_SERVERS = new Set(["setParameter"]);
const OF_SETS = new Set(["setParameter", "nodes", "nodeOptions", "settings", "oplogSize"]);
const OF_MEMBERS = new Set(["rsConfig"]);
const OF_MEMBER_CONFIGURATIONS = new Set(["priority", "votes", "tags", "hidden"]);

// Options without an effect that a suite could notice: logs, disk space, waits of the old fixtures.
const WITHOUT_EFFECT = new Set([
  ...["verbose", "v", "quiet", "logpath", "journal", "nojournal", "noprealloc", "smallfiles", "syncdelay"],
  ...["useHostname", "useHostName", "protocolVersion", "waitForKeys", "initiateTimeout", "shardAsReplicaSet"],
  ...["shardsvr", "configsvr", "port", "causallyConsistent", "writeConcernMajorityJournalDefault"],
]);
// Options whose default a suite may name.
const DEFAULTS = { enableMajorityReadConcern: ["", true, "true"], storageEngine: ["wiredTiger"], noMoveParanoia: [""] };
const SET_MEMBERS = 3;
const MORE_CONFIG_SERVERS = /\.config[12]\b|\bst\.c[12]\b|configRS\.(getSecondar|stop\w*\(|nodes\[[1-9])/;
const OF_ONE_SERVER = /^(rs|s|d|c)\d+$/;

const TEST_COMMANDS = [
  ...["--set-parameter", "enableTestCommands=1"],
  ...["--set-parameter", "diagnosticDataCollectionEnabled=false"],
];

// The defaults of the old shell: orphans are deleted soon.
const SHARD_DEFAULTS = { orphanCleanupDelaySecs: 1 };

// Returns {name, launcherOptions or ownServers, keyFile, routerParameters, sets, configSet, chunkSizeMB, enableBalancer,
// enableAutoSplit}; `sets` and `configSet` are what `configurationOf` returns.
function parseOptions(parameters) {
  const given =
    typeof parameters[0] === "string" || typeof parameters[1] === "number"
      ? positional(parameters)
      : (parameters[0] ?? {});
  const options = { ...given.other, ...given };
  refuseWhatIsNotApplied(options);
  refuseParametersOfConfigServers(options);
  const shards = countOf(options.shards ?? 2);
  const members = membersOf(options, shards);
  const oplogSize = oplogSizeOf(options);
  const keyFile = keyFileOf(options);
  const isUnequal = new Set(members).size > 1;
  const isOwn = shards === 0 || options.manualAddShard || isUnequal || oplogSize !== undefined || keyFile !== null;
  const configServers = configServersOf(options, shards);
  const routers = countOf(options.mongos ?? 1);
  const sizes = {
    "--shards": shards,
    "--members": members[0] ?? 1,
    "--config-members": configServers.length,
    "--routers": routers,
  };
  return {
    name: options.name ?? options.testName ?? "test",
    ownServers: isOwn && {
      ...{ members, routers, configServers: configServers.length, oplogSize, keyFile },
      addsShards: !options.manualAddShard,
      setParameter: parametersOfShards(options),
    },
    launcherOptions: [
      ...Object.entries(sizes).flatMap(([name, number]) => [name, String(number)]),
      ...TEST_COMMANDS,
      ...parameterWords(parametersOfShards(options)),
    ],
    keyFile,
    routerParameters: parametersOfRouters(options, routers),
    sets: setsOf(options, shards).map(configurationOf),
    configSet: configurationOf({ ...options.configReplSetTestOptions, nodes: configServers }),
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

// A suite with any other option must not run as if the option had its effect.
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
  for (const each of configServers) refuseOthers("a config server", each, new Set([...OF_SERVERS, ...OF_MEMBERS]));
  for (const each of routers) refuseOthers("a router", each, OF_SERVERS);
  for (const each of [...sets, configReplSetTestOptions]) refuseMembers(each?.nodes);
}

function refuseMembers(nodes) {
  for (const member of listed(nodes)) {
    refuseOthers("a member of a set", member, OF_MEMBERS);
    refuseOthers("a member of a set", member?.rsConfig, OF_MEMBER_CONFIGURATIONS);
  }
}

function refuseOthers(what, given, applied) {
  if (given === null || typeof given !== "object") return;
  for (const [name, value] of Object.entries(given)) {
    const isSet = value !== undefined && value !== null && value !== false && !DEFAULTS[name]?.includes(value);
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

// The options of each config server. The old shell starts three; here it is one, unless the suite uses more.
function configServersOf(options, shards) {
  const given = options.configReplSetTestOptions?.nodes ?? options.config ?? options.c;
  const each = Array.isArray(given) ? given : listed(given);
  const numbered = Object.keys(options).filter((name) => /^c\d+$/.test(name));
  const usesMore = shards === 0 || numbered.length > 0 || MORE_CONFIG_SERVERS.test(host.files.read(host.settings.file));
  const count = given === undefined ? (usesMore ? SET_MEMBERS : 1) : Math.max(1, countOf(given));
  return Array.from({ length: count }, (_, index) => ({ ...each[index], ...options[`c${index}`] }));
}

// The key file of all servers, null without access control. Servers that have none cannot be in a cluster with others
// that do.
function keyFileOf({ keyFile, auth }) {
  if (isKeyFile(keyFile)) return keyFile;
  if (auth || auth === "") unsupported("ShardingTest with auth and without keyFile");
  return null;
}

// The size of the shards' oplogs in MB, if the suite limits it.
function oplogSizeOf({ shardOptions, rsOptions, rs, shards }) {
  return [...listed(shards), rs, rsOptions, shardOptions].find((each) => each?.oplogSize)?.oplogSize;
}

// The options of each shard's set, if it has any.
function setsOf(options, shards) {
  const named = Array.isArray(options.shards) ? options.shards : Object.values(Object(options.shards));
  return Array.from({ length: shards }, (_, index) => ({
    ...options.rsOptions,
    ...options.rs,
    ...named[index],
    ...options[`rs${index}`],
  }));
}

// The configuration of a set and of its members, apart from its size; null if the suite does not set any.
function configurationOf({ nodes, settings }) {
  refuseMembers(nodes);
  const members = listed(nodes).map((each) => each?.rsConfig ?? {});
  const isDefault = members.every((each) => Object.keys(each).length === 0);
  return isDefault && settings === undefined ? null : { members, settings: settings ?? {} };
}

// The number of members of each shard: one, or three if it is to be a replica set of unspecified size. Shards that are
// not configured one by one have as many members as the largest one.
function membersOf(options, shards) {
  const named = Array.isArray(options.shards) ? {} : Object(options.shards);
  const numbered = Array.from({ length: shards }, (_, index) => options[`rs${index}`] ?? named[`rs${index}`]);
  const sizeOf = (each) =>
    countOf(each.nodes ?? options.rs?.nodes ?? options.rsOptions?.nodes ?? options.numReplicas ?? SET_MEMBERS);
  if (numbered.every(Boolean)) return numbered.map(sizeOf);
  const sizes = [options.rs, ...numbered].filter(Boolean).map(sizeOf);
  const ofOthers = [options.rsOptions, ...listed(options.shards)].map((each) => countOf(each?.nodes ?? 1));
  return Array.from({ length: shards }, () => Math.max(...sizes, ...ofOthers));
}

// The server parameters of the shards.
function parametersOfShards(options) {
  const given = parametersIn([options.shardOptions, options.rsOptions, options.rs, options.rs0, options.rs1]);
  const { migrationLockAcquisitionMaxWaitMS } = options;
  const ofMigrations = migrationLockAcquisitionMaxWaitMS === undefined ? {} : { migrationLockAcquisitionMaxWaitMS };
  return { ...SHARD_DEFAULTS, ...ofMigrations, ...given };
}

const parameterWords = (parameters) =>
  Object.entries(parameters).flatMap(([name, value]) => [
    "--set-parameter",
    `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`,
  ]);

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

module.exports = { OF_MEMBER_CONFIGURATIONS, configurationOf, parseOptions, refuseOthers };
