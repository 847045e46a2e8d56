"use strict";
// Checks of the success of commands and writes, by their results of any kind.
const { ErrorCodes, ErrorCodeStrings, isNetworkError } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { BulkWriteError, BulkWriteResult, WriteCommandError, WriteError, WriteResult } = require("../write_results.js");
const { fail } = require("./failing.js");

const ANY_CODE = Object.freeze({});

// The errors in a result, by their place; `other` if the result has no place for errors.
function errorsIn(result) {
  if (result === null || typeof result !== "object") return { other: `not an object: ${tojson(result)}` };
  if (result instanceof WriteResult) {
    return {
      writes: [result.getWriteError()].filter(Boolean),
      concerns: [result.getWriteConcernError()].filter(Boolean),
    };
  }
  if (result instanceof BulkWriteResult || result instanceof BulkWriteError) {
    return { writes: result.getWriteErrors(), concerns: [result.getWriteConcernError()].filter(Boolean) };
  }
  if (result instanceof WriteError) return { writes: [result] };
  if (result instanceof WriteCommandError || result instanceof Error) return { command: result };
  if ("acknowledged" in result && !("ok" in result)) return {};
  if (!("ok" in result)) return { other: `no field ok: ${tojson(result)}` };
  return errorsInReply(result);
}

function errorsInReply(reply) {
  const concerns = reply.writeConcernError ? [reply.writeConcernError] : [];
  if (Number(reply.ok) !== 1) return { command: reply, writes: [], concerns };
  return { writes: reply.writeErrors ?? [], concerns };
}

// All messages have this form, because suites search for it.
function describe(result) {
  const code =
    result?.code === undefined
      ? ""
      : ` with code ${result.code} (${ErrorCodeStrings[result.code] ?? "Location" + result.code})`;
  return `${code} : ${result instanceof Error ? result : tojson(result)}`;
}

const worked =
  ({ ignoresWrites = false, ignoresConcerns = false }) =>
  (result, message) => {
    const { command, writes = [], concerns = [], other } = errorsIn(result);
    if (other !== undefined) fail(`command failed: ${other}`, message);
    if (command !== undefined) fail(`command failed${describe(command)}`, message, command);
    if (!ignoresWrites && writes.length > 0) fail(`write failed with error${describe(writes[0])}`, message, writes[0]);
    if (!ignoresConcerns && concerns.length > 0)
      fail(`write concern failed with errors${describe(concerns[0])}`, message, concerns[0]);
    return result;
  };

const allErrors = ({ command, writes = [], concerns = [] }) => [...(command ? [command] : []), ...writes, ...concerns];

function commandFailed(result, message) {
  return commandFailedWithCode(result, ANY_CODE, message);
}

function commandFailedWithCode(result, codes, message) {
  const found = errorsIn(result);
  if (found.other !== undefined) fail(`command: ${found.other}`, message);
  const errors = allErrors(found);
  if (errors.length === 0) fail(`command worked when it should have failed : ${tojson(result)}`, message);
  if (codes === ANY_CODE) return result;
  const expected = [codes].flat().map((code) => ErrorCodes[code] ?? code);
  if (!errors.some((error) => expected.includes(error.code))) {
    fail(
      `command did not fail with any of the following codes ${tojson(expected)}${describe(errors[0])}`,
      message,
      errors[0],
    );
  }
  return result;
}

function commandWorkedOrFailedWithCode(result, codes, message) {
  if (allErrors(errorsIn(result)).length === 0) return module.exports.commandWorked(result, message);
  return commandFailedWithCode(result, codes, message);
}

// Run an admin command that may end its own connection.
function adminCommandWorkedAllowingNetworkError(node, command) {
  try {
    module.exports.commandWorked(node.adminCommand(command));
  } catch (error) {
    if (!isNetworkError(error)) throw error;
  }
}

// Members of the error that are not in `expected` do not matter.
function writeErrorWithCode(result, codes, message) {
  const { writes = [], concerns = [], command } = errorsIn(result);
  if (command !== undefined && !(result instanceof WriteCommandError))
    fail("write failed with something else", message, command);
  const errors = [...writes, ...concerns, ...(command ? [command] : [])];
  if (errors.length === 0) fail(`no write error: ${tojson(result)}`, message);
  const expected = codes === undefined ? undefined : [codes].flat();
  if (expected !== undefined && !errors.some((error) => expected.includes(error.code))) {
    fail(
      `found code(s) ${errors.map((error) => error.code)} does not match any of the expected codes ${tojson(expected)}`,
      message,
      errors[0],
    );
  }
  return result;
}

// Options of a helper have none of the fields of the Stable API; these are for `runCommand` alone.
function noAPIParams(options) {
  if (options === null || typeof options !== "object") return;
  const found = ["apiVersion", "apiStrict", "apiDeprecationErrors"].filter((name) => Object.hasOwn(options, name));
  if (found.length > 0) fail(`API parameters are not allowed in this context: ${found}`);
}

module.exports = {
  _kAnyErrorCode: ANY_CODE,
  noAPIParams,
  commandWorked: worked({}),
  commandWorkedIgnoringWriteErrors: worked({ ignoresWrites: true }),
  commandWorkedIgnoringWriteConcernErrors: worked({ ignoresConcerns: true }),
  commandWorkedIgnoringWriteErrorsAndWriteConcernErrors: worked({ ignoresWrites: true, ignoresConcerns: true }),
  commandFailed,
  commandFailedWithCode,
  commandWorkedOrFailedWithCode,
  adminCommandWorkedAllowingNetworkError,
  writeOK: worked({}),
  writeError: (result, message) => writeErrorWithCode(result, undefined, message),
  writeErrorWithCode,
};
