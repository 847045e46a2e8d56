"use strict";
// `jsTest`, `TestData` and the functions that print.
const { tojson, tojsononeline } = require("./tojson.js");

const text = (value) => (typeof value === "string" ? value : value === undefined ? "undefined" : tojson(value));
const captures = [];

function print(...values) {
  const line = values.map(text).join(" ");
  if (captures.length > 0) captures.at(-1).push(...line.split("\n"));
  else host.write(`${line}\n`);
}

// Call a function; returns {output: the lines that it has printed, result}.
print.captureAllOutput = (action, parameters = []) => {
  const output = [];
  captures.push(output);
  try {
    return { output, result: action(...parameters) };
  } finally {
    captures.pop();
  }
};

const printjson = (value) => print(tojson(value));
const printjsononeline = (value) => print(tojsononeline(value));

const testName = host.files.baseName(host.settings.file ?? "shell").replace(/\.js$/, "");

const TestData = {
  testName,
  testData: undefined,
  seed: host.settings.seed ?? Date.now() % 2 ** 31,
  setParameters: {},
  setParametersMongos: {},
  storageEngine: "wiredTiger",
  wiredTigerEngineConfigString: "",
  enableTestCommands: true,
  isMainTest: true,
  ...host.settings.testData,
};

const line = "-".repeat(40);

function log(message, { newLines = true } = {}) {
  print(newLines ? `\n\n${line}\n${text(message)}\n${line}\n\n` : text(message));
}

const jsTest = {
  name: () => TestData.testName,
  options: () => ({ enableTestCommands: true, writeConcern: undefined, ...TestData }),
  setOption: (name, value) => void (TestData[name] = value),
  dir: () => host.files.directoryOf(host.settings.file),
  log,
  isMongos: (connection) => connection.isMongos(),
  // Only suites that run with a user of their own for all connections authenticate here.
  authenticate: () => true,
  authenticateNodes: () => undefined,
  adminUserRoles: ["root"],
  basicUserRoles: ["dbOwner"],
  readOnlyUserRoles: ["read"],
  basePath: () => host.settings.directory,
};
for (const level of ["info", "warning", "error", "debug"]) log[level] = (message) => log(message, { newLines: false });

module.exports = {
  TestData,
  jsTest,
  jsTestLog: log,
  jsTestName: jsTest.name,
  jsTestOptions: jsTest.options,
  print,
  printjson,
  printjsononeline,
};
