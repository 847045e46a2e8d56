"use strict";
// Names of the old shell for features that no cluster here has: a suite that uses one is skipped instead of failing.
const { unsupported } = require("./errors.js");

// Any call on the value, or with it, is unsupported.
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
  "clearRawMongoProgramOutput",
  "ToolTest",
  "ReplTest",
  "_awaitRSHostViaRSMonitor",
  "DBPointer",
];

module.exports = Object.fromEntries(NAMES.map((name) => [name, refusing(name)]));
