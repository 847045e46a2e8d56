"use strict";
// The parameters of ShardingTest, as options of `shardwright up`.
const { unsupported } = require("../errors.js");
const { parametersIn } = require("./server_parameters.js");

const UNSUPPORTED = ["keyFile", "useBridge", "configShard", "replicaSetEndpoint", "bridgeOptions"];

const TEST_COMMANDS = ["--set-parameter", "enableTestCommands=1"];

// Returns {name, launcherOptions, routerParameters, chunkSizeMB, enableBalancer}.
function parseOptions(parameters) {
  const given =
    typeof parameters[0] === "string" || typeof parameters[1] === "number"
      ? positional(parameters)
      : (parameters[0] ?? {});
  const options = { ...given.other, ...given };
  for (const name of UNSUPPORTED) if (options[name]) unsupported(`ShardingTest with ${name}`);
  refuseParametersOfConfigServers(options);
  const shards = countOf(options.shards ?? 2);
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
  };
}

const positional = ([name, shards, , mongos, other]) => ({
  name,
  ...(shards === undefined ? {} : { shards }),
  ...(mongos === undefined ? {} : { mongos }),
  ...other,
});

// A number, or one entry for each process.
function countOf(value) {
  if (typeof value === "number") return value;
  return Array.isArray(value) ? value.length : Object.keys(value).length;
}

function configOf(options) {
  const nodes = options.configReplSetTestOptions?.nodes ?? options.config ?? options.c ?? 1;
  return nodes === 0 ? 1 : nodes;
}

// All shards have as many members as the largest of them asks for.
function membersOf(options, shards) {
  const listed = typeof options.shards === "object" ? Object.values(options.shards) : [];
  const numbered = Array.from({ length: shards }, (_, index) => options[`rs${index}`]);
  const all = [options.rs, options.rsOptions, ...listed, ...numbered].filter(
    (each) => each !== null && typeof each === "object",
  );
  return Math.max(1, ...all.filter((each) => each.nodes !== undefined).map((each) => countOf(each.nodes)));
}

// The server parameters of the shards.
function parametersOfShards(options) {
  const kept = Object.entries(
    parametersIn([options.shardOptions, options.rsOptions, options.rs, options.rs0, options.rs1]),
  );
  return kept.flatMap(([name, value]) => [
    "--set-parameter",
    `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`,
  ]);
}

// The server parameters of each router.
function parametersOfRouters(options, routers) {
  const listed = typeof options.mongos === "object" ? Object.values(options.mongos) : [];
  return Array.from({ length: routers }, (_, index) =>
    parametersIn([options.mongosOptions, listed[index], options[`s${index}`]]),
  );
}

function refuseParametersOfConfigServers(options) {
  const listed = [options.config, options.c].flatMap((each) =>
    typeof each === "object" && each !== null ? Object.values(each) : [],
  );
  const { configOptions, configReplSetTestOptions } = options;
  const places = [configOptions, configReplSetTestOptions, configReplSetTestOptions?.nodeOptions, ...listed];
  const names = Object.keys(parametersIn(places));
  if (names.length > 0) unsupported(`config servers with the parameter ${names}`);
}

module.exports = { parseOptions };
