"use strict";
// Functions that throw, or must not.
const { tojson } = require("../tojson.js");
const { fail } = require("./failing.js");

// `parameters` is an array; suites also give null, or a message in its place.
const run = (action, parameters) =>
  typeof action === "string"
    ? host.evaluate(action, "assert.throws")
    : action(...(Array.isArray(parameters) ? parameters : []));

// The error that `action` throws.
function caught(action, parameters) {
  try {
    return { returned: run(action, parameters) };
  } catch (error) {
    if (error?.isQuit) throw error;
    return { error: error ?? new Error("undefined was thrown") };
  }
}

function throws(action, parameters, message) {
  const { error } = caught(action, parameters);
  if (error === undefined) fail(`did not throw exception`, message);
  return error;
}

function throwsWithCode(action, codes, parameters, message) {
  const error = throws(action, parameters, message);
  if (![codes].flat().includes(error.code)) {
    fail(`[${error.code}] and [${tojson(codes)}] are not equal: ${error.message ?? error}`, message);
  }
  return error;
}

function doesNotThrow(action, parameters, message) {
  const { error, returned } = caught(action, parameters);
  if (error !== undefined) fail(`threw unexpected exception: ${error}`, message, error);
  return returned;
}

// The result of `action`, or `onDrop` of its error if the error has one of these codes.
function dropExceptionsWithCode(action, codes, onDrop) {
  if (typeof action !== "function") fail("assert.dropExceptionsWithCode 1st argument must be a function");
  if (typeof onDrop !== "function") fail("assert.dropExceptionsWithCode 3rd argument must be a function");
  try {
    return action();
  } catch (error) {
    if (error?.isQuit || ![codes].flat().includes(error?.code)) throw error;
    return onDrop(error);
  }
}

throws.automsg = (action, parameters) => throws(action, parameters, String(action));
doesNotThrow.automsg = (action, parameters) => doesNotThrow(action, parameters, String(action));

module.exports = { throws, throwsWithCode, doesNotThrow, dropExceptionsWithCode };
