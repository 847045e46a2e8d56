"use strict";
// Errors of commands and of the network, and predicates for them.
const { ErrorCodes, ErrorCodeStrings } = require("./error_codes.js");
const { tojson } = require("./tojson.js");

// An error with the code of a command's reply.
function _getErrorWithCode(reply, message) {
  const error = new Error(message);
  const code = reply?.code ?? reply?.writeErrors?.[0]?.code;
  if (code !== undefined) error.code = code;
  if (reply?.codeName !== undefined) error.codeName = reply.codeName;
  const labels = reply?.errorLabels;
  if (labels !== undefined) error.errorLabels = labels;
  if (reply?.writeErrors !== undefined) error.writeErrors = reply.writeErrors;
  return error;
}

function doassert(message, reply) {
  const text = typeof message === "function" ? message() : typeof message === "object" ? tojson(message) : message;
  throw _getErrorWithCode(reply, typeof text === "string" ? text : String(text));
}

// The connection to `host` broke during `name`.
class NetworkError extends Error {
  constructor(name, host, reason) {
    super(`network error while attempting to run command '${name}' on host '${host}': ${reason}`);
    Object.defineProperty(this, "isNetworkError", { value: true });
  }
}

const NETWORK_CODES = ["HostUnreachable", "HostNotFound", "NetworkTimeout", "SocketException"];
const STEPDOWN_CODES = [
  "NotWritablePrimary",
  "NotPrimaryNoSecondaryOk",
  "NotPrimaryOrSecondary",
  "InterruptedDueToReplStateChange",
  "PrimarySteppedDown",
  "ShutdownInProgress",
  "InterruptedAtShutdown",
];
const hasCodeOf = (error, names) =>
  names.some((name) => ErrorCodes[name] !== undefined && error?.code === ErrorCodes[name]);

const isNetworkError = (error) =>
  Boolean(error?.isNetworkError) ||
  hasCodeOf(error, NETWORK_CODES) ||
  /network error|socket exception|couldn't connect/i.test(String(error?.message ?? error));

const isRetryableError = (error) => isNetworkError(error) || hasCodeOf(error, STEPDOWN_CODES);

// Run `action`; return null if its connection breaks.
function executeNoThrowNetworkError(action) {
  try {
    return action();
  } catch (error) {
    if (isNetworkError(error))
      return { ok: 0, networkError: true, code: ErrorCodes.HostUnreachable, errmsg: error.message };
    throw error;
  }
}

function retryOnNetworkError(action, retries = 1, sleepMs = 1000) {
  for (;;) {
    try {
      return action();
    } catch (error) {
      if (!isNetworkError(error) || retries-- <= 0) throw error;
      host.sleep(sleepMs);
    }
  }
}

function retryOnRetryableError(action, retries = 1, sleepMs = 1000, alsoRetried = []) {
  for (;;) {
    try {
      return action();
    } catch (error) {
      if (!(isRetryableError(error) || alsoRetried.includes(error.code)) || retries-- <= 0) throw error;
      host.sleep(sleepMs);
    }
  }
}

// A feature of the old shell that no cluster here supports: the suite is reported as skipped.
function unsupported(what) {
  host.unsupported.push(`not supported: ${what}`);
  throw new Error(`not supported: ${what}`);
}

module.exports = {
  ErrorCodes,
  ErrorCodeStrings,
  NetworkError,
  _getErrorWithCode,
  doassert,
  executeNoThrowNetworkError,
  isNetworkError,
  isRetryableError,
  retryOnNetworkError,
  retryOnRetryableError,
  unsupported,
};
