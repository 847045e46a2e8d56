"use strict";
// Running one suite in a realm, and the outcome as the runner reads it: {result, message?, line?, stack?}.
const { createHost } = require("./host.js");
const { Realm } = require("./realm.js");

function runSuite(settings) {
  const host = createHost(settings);
  const realm = new Realm(host);
  try {
    host.evaluate(settings.code, "--eval");
    realm.runFile(settings.file);
    realm.finish();
    return { result: "pass" };
  } catch (error) {
    return outcomeOf(error, host, settings.file);
  }
}

// An unsupported feature explains any later failure, even if the suite wraps the error in one of its own.
function outcomeOf(error, host, file) {
  if (error?.isQuit) return error.code === 0 ? { result: "pass" } : { result: "fail", message: `quit(${error.code})` };
  if (host.unsupported.length > 0) return { result: "skip", message: host.unsupported[0] };
  return { result: "fail", message: messageOf(error), line: lineIn(file, error), stack: String(error?.stack ?? "") };
}

function messageOf(error) {
  if (error === null || typeof error !== "object") return `uncaught exception: ${String(error)}`;
  return error.name && error.name !== "Error" ? `${error.name}: ${error.message}` : String(error.message ?? error);
}

// The line of the suite in the innermost frame that is in it; null if no frame is.
function lineIn(file, error) {
  const escaped = file.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const found = new RegExp(`${escaped}:(\\d+)`).exec(String(error?.stack ?? ""));
  return found === null ? null : Number(found[1]);
}

module.exports = { runSuite, outcomeOf };
