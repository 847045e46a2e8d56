"use strict";
// Failures of assertions.
const { doassert } = require("../errors.js");
const { tojson } = require("../tojson.js");

// The text of a failure, with the caller's message.
function formatErrorMsg(prefix, message) {
  if (message === undefined || message === null || message === "") return prefix;
  const text = typeof message === "function" ? message() : typeof message === "object" ? tojson(message) : message;
  return `${prefix} : ${text}`;
}

const fail = (prefix, message, reply) => doassert(formatErrorMsg(prefix, message), reply);

module.exports = { fail, formatErrorMsg };
