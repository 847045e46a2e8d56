"use strict";
// Server parameters that suites give the servers of a ShardingTest: `setParameter` as an object, or as "name=value".
const { unsupported } = require("../errors.js");

// Parameters that suites set for every server of the old shell's fixtures; they have no meaning here.
const IGNORED = ["logComponentVerbosity", "writePeriodicNoops", "testingDiagnosticsEnabled"];

// The parameters from several sets of options; later ones take precedence.
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

// Set parameters of a running server; a suite with a parameter that cannot be changed is skipped.
function setParameters(server, parameters, kind = "routers") {
  for (const [name, value] of Object.entries(parameters)) {
    const reply = server.adminCommand({ setParameter: 1, [name]: value });
    if (reply.ok !== 1) unsupported(`${kind} with the parameter ${name}: ${reply.errmsg}`);
  }
}

module.exports = { parametersIn, setParameters };
