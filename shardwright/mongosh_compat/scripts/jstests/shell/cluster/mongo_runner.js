"use strict";
// `MongoRunner`: mongods that are no part of a cluster.
const { assert } = require("../assert/assert.js");
const { unsupported } = require("../errors.js");
const { Mongo } = require("../connection/mongo.js");

const START_TIMEOUT_MS = 60_000;
const HOST = "127.0.0.1";
const UNSUPPORTED = ["replSet", "shardsvr", "configsvr", "keyFile", "auth", "tlsMode", "binVersion", "waitForConnect"];

let lastMongod = 0;

const MongoRunner = {
  EXIT_CLEAN: 0,
  EXIT_SIGKILL: 9,
  dataDir: host.settings.directory,
  dataPath: `${host.settings.directory}/`,
  dbpaths: [],

  // Start a mongod and connect to it.
  runMongod(options = {}) {
    for (const name of UNSUPPORTED) if (options[name]) unsupported(`MongoRunner.runMongod with ${name}`);
    const dbpath = options.dbpath ?? `${MongoRunner.dataPath}mongod${++lastMongod}-${Date.now()}`;
    if (!options.noCleanData && !options.restart) host.files.remove(dbpath);
    const port = options.port ?? freePort();
    const pid = host.mongod.startMongod(host.settings.mongod, dbpath, [
      "--port",
      String(port),
      ...parametersOf(options),
    ]);
    const connection = connected(port, pid);
    return Object.assign(connection, { pid, dbpath, fullOptions: { ...options, dbpath, port }, commandLine: { port } });
  },

  // Stop a mongod; returns its exit code, which is not known for one that was killed.
  stopMongod(connection, signal = 15) {
    connection.close();
    host.mongod.kill(connection.pid, signal ?? 15);
    assert.soon(
      () => host.mongod.hasEnded(connection.pid),
      `mongod on ${connection.host} does not end`,
      START_TIMEOUT_MS,
    );
    return signal === 9 ? MongoRunner.EXIT_SIGKILL : MongoRunner.EXIT_CLEAN;
  },

  runMongos: () => unsupported("MongoRunner.runMongos"),
  validateCollectionsCallback: () => undefined,
  toRealPath: (path) => path.replace("$dataPath", host.settings.directory),
};

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

function connected(port, pid) {
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
  // If the port was taken in the meantime, another server has answered.
  const isOurs = connection && Number(connection.adminCommand({ serverStatus: 1 }).pid) === pid;
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

module.exports = { MongoRunner, allocatePorts };
