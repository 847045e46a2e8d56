"use strict";
// The parts of the surrounding process that a realm may use.
const { createRequire } = require("module");
const fs = require("fs");

const files = require("./files.js");
const hashes = require("./hashes.js");
const { Launcher } = require("./launcher.js");
const mongod = require("./mongod.js");
const { Network } = require("./network.js");
const { startThread } = require("./threads.js");

// Thrown by quit(); a suite cannot tell it from the end of the process.
class Quit extends Error {
  isQuit = true;

  constructor(code) {
    super(`quit(${code})`);
    this.code = code;
  }
}

function createHost(settings) {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const host = {
    settings,
    ports: portsToChooseFrom(),
    files,
    hashes,
    mongod,
    bsonPath: findBson(settings.mongosh),
    network: new Network(),
    launcher: new Launcher(settings),
    unsupported: [],
    pid: process.pid,
    sleep: (milliseconds) => void Atomics.wait(pause, 0, 0, Math.max(0, milliseconds)),
    write,
    quit: (code) => {
      throw new Quit(code);
    },
  };
  host.startThread = (task) => startThread(settings, task);
  return host;
}

// Read from the environment, as the launcher sets them.
function portsToChooseFrom() {
  const [first, last] = (process.env.SHARDWRIGHT_PORTS ?? "20000-31999").split("-").map(Number);
  return { first, count: last - first + 1 };
}

// The bson package of mongosh itself, if mongosh is installed as a package instead of a single executable.
function findBson(mongosh) {
  try {
    return createRequire(fs.realpathSync(mongosh)).resolve("bson");
  } catch (error) {
    throw new Error(`suites need the npm package of mongosh, which ${mongosh} is not: ${error.message}`);
  }
}

function write(text) {
  const bytes = Buffer.from(text);
  for (let written = 0; written < bytes.length;) written += fs.writeSync(1, bytes, written);
}

module.exports = { createHost };
