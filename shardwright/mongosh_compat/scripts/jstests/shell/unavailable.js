"use strict";
// Names of the old shell for what no cluster here has: a suite that uses one is skipped and not failed.
const { unsupported } = require("./errors.js");

// Whatever is called on the value, or with it, is not supported.
const refusing = (name) =>
  new Proxy(function () {}, {
    get: (_, property) => (typeof property === "symbol" ? undefined : refusing(`${name}.${property}`)),
    apply: () => unsupported(name),
    construct: () => unsupported(name),
  });

const NAMES = [
  "ReplSetBridge",
  "MongoBridge",
  "benchRun",
  "benchStart",
  "benchFinish",
  "runMongoProgram",
  "startMongoProgram",
  "startMongoProgramNoConnect",
  "_startMongoProgram",
  "_runMongoProgram",
  "stopMongoProgramByPid",
  "waitProgram",
  "runProgram",
  "run",
  "rawMongoProgramOutput",
  "ToolTest",
  "ReplTest",
  "_awaitRSHostViaRSMonitor",
];

module.exports = Object.fromEntries(NAMES.map((name) => [name, refusing(name)]));
