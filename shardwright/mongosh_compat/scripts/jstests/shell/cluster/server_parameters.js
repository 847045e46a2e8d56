"use strict";
// Server parameters that suites give the servers of a ShardingTest: `setParameter` as an object, or as "name=value".
const { unsupported } = require("../errors.js");

// Those that suites set for every server of the old shell's fixtures, and which have no meaning here.
const IGNORED = ["logComponentVerbosity", "writePeriodicNoops", "testingDiagnosticsEnabled"];

// The parameters in the options of several places, of which later ones win.
function parametersIn(places) {
  const given = places.filter((each) => each !== null && typeof each === "object");
  const { enableTestCommands = 1, ...all } = Object.assign({}, ...given.map((each) => asObject(each.setParameter)));
  if (!Number(enableTestCommands)) unsupported("a server without test commands");
  return Object.fromEntries(Object.entries(all).filter(([name]) => !IGNORED.includes(name)));
}

function asObject(parameter) {
  if (typeof parameter !== "string") return parameter ?? {};
  const [name, ...value] = parameter.split("=");
  return { [name]: parsed(value.join("=")) };
}

function parsed(text) {
  if (text === "true" || text === "false") return text === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

// Set parameters of a router that runs; one that it cannot change is not left out silently.
function setParameters(router, parameters) {
  for (const [name, value] of Object.entries(parameters)) {
    const reply = router.adminCommand({ setParameter: 1, [name]: value });
    if (reply.ok !== 1) unsupported(`routers with the parameter ${name}: ${reply.errmsg}`);
  }
}

module.exports = { parametersIn, setParameters };
