"use strict";
// `MongoRunner`: mongods that are not part of a cluster, and further routers of clusters.
const { assert } = require("../assert/assert.js");
const { unsupported } = require("../errors.js");
const { Mongo } = require("../connection/mongo.js");
const { daemonKeyWords, isKeyFile, mongodKeyWords, withMember } = require("./members.js");
const { parametersIn, setParameters } = require("./server_parameters.js");
const { refuseOthers } = require("./sharding_test_options.js");

const START_TIMEOUT_MS = 60_000;
const HOST = "127.0.0.1";
const TEST_COMMANDS = ["--set-parameter", "enableTestCommands=1"];
const UNSUPPORTED = ["replSet", "shardsvr", "configsvr", "tlsMode", "binVersion", "waitForConnect"];

let lastMongod = 0;

// An option without a value, as on a command line, is an empty string.
const isGiven = (option) => Boolean(option) || option === "";

// The version of clusters, and the releases before it.
const VERSIONS = { "": "6.0", latest: "6.0", "last-continuous": "5.3", "last-lts": "5.0", "last-stable": "5.0" };

const MongoRunner = {
  EXIT_CLEAN: 0,
  EXIT_SIGKILL: 9,
  dataDir: host.settings.directory,
  dataPath: `${host.settings.directory}/`,
  dbpaths: [],

  // The version of a binary by its name, such as "latest"; a version is its own name.
  getBinVersionFor: (name) => VERSIONS[name] ?? name,

  areBinVersionsTheSame(left, right) {
    const [a, b] = [left, right].map((name) => MongoRunner.getBinVersionFor(name).split("."));
    return [0, 1].every((index) => a[index] === b[index]);
  },

  // Start a mongod and connect to it.
  runMongod(options = {}) {
    for (const name of UNSUPPORTED)
      if (isGiven(options[name])) unsupported(`MongoRunner.runMongod with ${name}`);
    const { keyFile } = options;
    const hasAuth = isGiven(options.auth) || isKeyFile(keyFile);
    if (hasAuth && !isKeyFile(keyFile)) unsupported("MongoRunner.runMongod with auth and without keyFile");
    const dbpath = options.dbpath ?? `${MongoRunner.dataPath}mongod${++lastMongod}-${Date.now()}`;
    if (!options.noCleanData && !options.restart) host.files.remove(dbpath);
    const port = options.port ?? freePort();
    const pid = host.mongod.startMongod(host.settings.mongod, dbpath, [
      "--port",
      String(port),
      ...mongodKeyWords(keyFile, host.settings.directory),
      ...parametersOf(options),
    ]);
    const connection = connected(port, pid, keyFile);
    return Object.assign(connection, { pid, dbpath, fullOptions: { ...options, dbpath, port }, commandLine: { port } });
  },

  // Stop a mongod, or a member of a set; returns its exit code, which is unknown if it was killed.
  stopMongod(connection, signal = 15) {
    if (connection.memberOf) return connection.memberOf.stop(connection, signal);
    return endProcess(connection, signal);
  },

  // Start another router of a cluster, and connect to it unless `waitForConnect` is false.
  runMongos({ configdb, port, waitForConnect = true, setParameter, keyFile, ...others } = {}) {
    refuseOthers("MongoRunner.runMongos", others, new Set());
    const [own, metrics] = allocatePorts(2).map(String);
    const address = `${HOST}:${port ?? own}`;
    const log = host.files.join(host.settings.directory, `router-${own}.log`);
    const listening = ["--port", String(port ?? own), "--metrics-port", metrics, "--log-file", log];
    const key = daemonKeyWords(keyFile, host.settings.directory);
    const words = [...listening, ...TEST_COMMANDS, ...key, "--configdb", configdb];
    const pid = host.launcher.startDaemon("router", words);
    const started = { host: address, port: Number(port ?? own), pid };
    if (!waitForConnect) return started;
    const connection = connectToRouter(started);
    withMember(address, keyFile, (member) => setParameters(member, parametersIn([{ setParameter }])));
    return connection;
  },

  stopMongos: (connection, signal) => endProcess(connection, signal),
  validateCollectionsCallback: () => undefined,
  toRealPath: (path) => path.replace("$dataPath", host.settings.directory),
};

// Connect to a router that runMongos has started.
function connectToRouter({ host: address, pid }) {
  let connection;
  const isReady = () => (connection = new Mongo(address)).adminCommand({ ping: 1 }).ok === 1;
  assert.soonNoExcept(isReady, "a router does not start", START_TIMEOUT_MS);
  return Object.assign(connection, { pid });
}

function endProcess(connection, signal) {
  connection.close?.();
  host.mongod.end(connection.pid, signal ?? 15, START_TIMEOUT_MS);
  return signal === 9 ? MongoRunner.EXIT_SIGKILL : MongoRunner.EXIT_CLEAN;
}

function freePort() {
  for (;;) {
    const port = host.ports.first + Math.floor(Math.random() * host.ports.count);
    if (host.network.isFree(HOST, port)) return port;
  }
}

// Ports that are free now, all different.
function allocatePorts(count) {
  const ports = new Set();
  while (ports.size < count) ports.add(freePort());
  return [...ports];
}

function connected(port, pid, keyFile) {
  let connection;
  assert.soonNoExcept(
    () => {
      if (host.mongod.hasEnded(pid)) return true;
      connection = new Mongo(`${HOST}:${port}`);
      return connection.adminCommand({ ping: 1 }).ok === 1;
    },
    "a mongod does not start",
    START_TIMEOUT_MS,
  );
  // If another process took the port first, its server has answered.
  const pidOf = (member) => Number(member.adminCommand({ serverStatus: 1 }).pid);
  const isOurs = connection && withMember(connection.host, keyFile, pidOf) === pid;
  assert(isOurs, `mongod ended instead of listening on port ${port}`);
  return connection;
}

function parametersOf({ setParameter = {} }) {
  const all =
    typeof setParameter === "string"
      ? [setParameter]
      : Object.entries(setParameter).map(([name, value]) => `${name}=${value}`);
  return ["enableTestCommands=1", ...all].flatMap((each) => ["--setParameter", each]);
}

module.exports = { HOST, MongoRunner, allocatePorts, connectToRouter };
