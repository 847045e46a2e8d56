"use strict";
// `checkLog`: searches in the lines of the log that a server keeps in memory.
const BSON = require("bson");

const { assert } = require("./assert/assert.js");
const { isNetworkError } = require("./errors.js");
const { tojson } = require("./tojson.js");

const TIMEOUT_MS = 300_000;
const INTERVAL_MS = 300;

// The lines; null if the connection breaks.
function getGlobalLog(connection) {
  try {
    return assert.commandWorked(connection.adminCommand({ getLog: "global" })).log;
  } catch (error) {
    if (isNetworkError(error)) return null;
    throw error;
  }
}

const linesOf = (connection) => getGlobalLog(connection) ?? [];
const hasText = (line, text) => (text instanceof RegExp ? text.test(line) : line.includes(text));

const checkContainsOnce = (connection, text) => linesOf(connection).some((line) => hasText(line, text));

// A wanted attribute is a value, or a function that checks one.
function hasAttributes(entry, wanted = {}) {
  return Object.entries(wanted).every(([name, value]) => {
    const found = entry.attr?.[name];
    return typeof value === "function" ? value(found) : found === value;
  });
}

const checkContainsOnceJson = (connection, id, attributes) =>
  linesOf(connection)
    .map((line) => JSON.parse(line))
    .some((entry) => entry.id === id && hasAttributes(entry, attributes));

const checkContainsOnceJsonStringMatch = (connection, id, name, text) => {
  const attribute = new RegExp(`"${name}":"?[^"|\\\\"]*${text}`);
  return linesOf(connection).some((line) => line.includes(`"id":${id},`) && attribute.test(line));
};

const waitFor = (check, what, timeout = TIMEOUT_MS) =>
  assert.soon(check, `the log has no entry with ${what}`, timeout, INTERVAL_MS);

function containsWithCount(connection, text, expected, timeout, isExact = true) {
  const count = () => linesOf(connection).filter((line) => hasText(line, text)).length;
  waitFor(() => (isExact ? count() === expected : count() >= expected), `${text}, ${expected} times`, timeout);
}

// Values as a log line shows them: numbers inside of documents have a decimal point.
const formatter = ({ quote, pad, separator }) =>
  function format(value, isQuoted = false, isInside = false) {
    if (typeof value === "string") return isQuoted ? `"${value}"` : value;
    if (value instanceof BSON.Long) return value.exactValueString;
    if (typeof value === "number") return Number.isInteger(value) && isInside ? value.toFixed(1) : value;
    if (typeof value !== "object" || value === null) return value;
    const [open, close] = Array.isArray(value) ? "[]" : "{}";
    const prefix = (name) => (Array.isArray(value) ? "" : `${quote}${name}${quote}:${pad}`);
    const parts = Object.keys(value).map((name) => prefix(name) + format(value[name], true, true));
    return parts.length === 0 ? open + close : `${open}${pad}${parts.join(separator)}${pad}${close}`;
  };

const checkLog = {
  getGlobalLog,
  checkContainsOnce,
  checkContainsOnceJson,
  checkContainsOnceJsonStringMatch,
  contains: (connection, text, timeout) => waitFor(() => checkContainsOnce(connection, text), text, timeout),
  containsJson: (connection, id, attributes, timeout) =>
    waitFor(() => checkContainsOnceJson(connection, id, attributes), `id ${id} and ${tojson(attributes)}`, timeout),
  containsWithCount,
  containsWithAtLeastCount: (connection, text, expected, timeout) =>
    containsWithCount(connection, text, expected, timeout, false),
  formatAsLogLine: formatter({ quote: "", pad: " ", separator: ", " }),
  formatAsJsonLogLine: formatter({ quote: '"', pad: "", separator: "," }),
};

module.exports = { checkLog };
