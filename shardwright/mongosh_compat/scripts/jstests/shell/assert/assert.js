"use strict";
// `assert` and its members.
const { doassert } = require("../errors.js");
const { tojson } = require("../tojson.js");

// What failed, with the message of the caller.
function formatErrorMsg(prefix, message) {
  if (message === undefined || message === null || message === "") return prefix;
  const text = typeof message === "function" ? message() : typeof message === "object" ? tojson(message) : message;
  return `${prefix} : ${text}`;
}

const fail = (prefix, message, reply) => doassert(formatErrorMsg(prefix, message), reply);

function assert(value, message) {
  if (arguments.length > 2) doassert("Too many parameters to assert().");
  if (typeof value === "function") doassert("assert() takes a value and not a function");
  if (!value) fail("assert failed", message);
}

// `expression` is source of a comparison; the old shell's way of making the message by itself.
const automsg = (check) => (expression) => check(host.evaluate(`(${expression})`, "automsg"), expression);
assert.automsg = automsg((value, expression) => assert(value, expression));
assert._debug = false;

module.exports = { assert, fail, formatErrorMsg };

Object.assign(
  assert,
  require("./equality.js"),
  require("./order.js"),
  require("./members.js"),
  require("./waiting.js"),
  require("./throwing.js"),
  require("./commands.js"),
  require("./writes.js"),
);
