"use strict";
// The replies of getLastError, which the oldest suites still check.
const { tojson } = require("../tojson.js");
const { fail } = require("./failing.js");

const errorOf = (reply) => reply.err ?? reply.errmsg ?? null;

function gleOK(reply, message) {
  if (!reply.ok || errorOf(reply) !== null) fail(`getLastError reply is not OK: ${tojson(reply)}`, message);
}

function gleError(reply, message) {
  if (errorOf(reply) === null) fail(`getLastError reply has no error: ${tojson(reply)}`, message);
}

function gleErrorCode(reply, code, message) {
  if (errorOf(reply) === null || reply.code !== code)
    fail(`getLastError reply has not the code ${code}: ${tojson(reply)}`, message);
}

const gleSuccess = (database, message) => gleOK(database.getLastErrorObj(), message);

module.exports = { gleOK, gleError, gleErrorCode, gleSuccess };
