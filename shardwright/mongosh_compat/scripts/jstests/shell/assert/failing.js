"use strict";
// How an assertion fails.
const { doassert } = require("../errors.js");
const { tojson } = require("../tojson.js");

// What failed, with the message of the caller.
function formatErrorMsg(prefix, message) {
  if (message === undefined || message === null || message === "") return prefix;
  const text = typeof message === "function" ? message() : typeof message === "object" ? tojson(message) : message;
  return `${prefix} : ${text}`;
}

const fail = (prefix, message, reply) => doassert(formatErrorMsg(prefix, message), reply);

module.exports = { fail, formatErrorMsg };
