"use strict";
// The parameters of ShardingTest, as options of `shardwright up`.
const { unsupported } = require("../errors.js");

const UNSUPPORTED = ["keyFile", "useBridge", "configShard", "replicaSetEndpoint", "bridgeOptions"];

const TEST_COMMANDS = ["--set-parameter", "enableTestCommands=1"];

// Returns {name, launcherOptions, chunkSizeMB, enableBalancer}.
function parseOptions(parameters) {
  const given =
    typeof parameters[0] === "string" || typeof parameters[1] === "number"
      ? positional(parameters)
      : (parameters[0] ?? {});
  const options = { ...given.other, ...given };
  for (const name of UNSUPPORTED) if (options[name]) unsupported(`ShardingTest with ${name}`);
  const shards = countOf(options.shards ?? 2);
  const sizes = {
    "--shards": shards,
    "--members": membersOf(options, shards),
    "--config-members": countOf(configOf(options)),
    "--routers": countOf(options.mongos ?? 1),
  };
  return {
    name: options.name ?? options.testName ?? "test",
    launcherOptions: [
      ...Object.entries(sizes).flatMap(([name, number]) => [name, String(number)]),
      ...TEST_COMMANDS,
      ...parametersOf(options),
    ],
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

// Parameters that suites set for every mongod of the old shell's fixtures, and which have no meaning here.
const IGNORED = ["logComponentVerbosity", "enableTestCommands", "writePeriodicNoops", "testingDiagnosticsEnabled"];

// The server parameters of the shards.
function parametersOf(options) {
  const places = [options.shardOptions, options.rsOptions, options.rs, options.rs0, options.rs1].filter(Boolean);
  const all = Object.assign({}, ...places.map((each) => asObject(each.setParameter)));
  const kept = Object.entries(all).filter(([name]) => !IGNORED.includes(name));
  return kept.flatMap(([name, value]) => [
    "--set-parameter",
    `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`,
  ]);
}

function asObject(parameter) {
  if (typeof parameter !== "string") return parameter ?? {};
  const [name, ...value] = parameter.split("=");
  return { [name]: value.join("=") };
}

module.exports = { parseOptions };
