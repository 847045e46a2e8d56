"use strict";
// Assertions about the contents of arrays, strings and documents.
const { bsonWoCompare } = require("../bson_order.js");
const { tojson } = require("../tojson.js");
const { fail } = require("./failing.js");
const { friendlyEqual } = require("./equality.js");

const isArrayLike = (value) =>
  Array.isArray(value) || (value !== null && typeof value === "object" && "length" in value);
const isIn = (value, array) => Array.from(array).some((each) => friendlyEqual(each, value));

function contains(value, array, message) {
  if (!isArrayLike(array)) fail("The second argument to assert.contains must be an array.", message);
  if (!isIn(value, array)) fail(`${tojson(value)} was not in ${tojson(array)}`, message);
}

function doesNotContain(value, array, message) {
  if (!isArrayLike(array)) fail("The second argument to assert.doesNotContain must be an array.", message);
  if (isIn(value, array)) fail(`${tojson(value)} is in ${tojson(array)}`, message);
}

function containsPrefix(prefix, array, message) {
  if (typeof prefix !== "string") fail("The first argument to containsPrefix must be a string.", message);
  if (!Array.from(array).some((each) => typeof each === "string" && each.startsWith(prefix))) {
    fail(`${tojson(prefix)} was not a prefix in ${tojson(array)}`, message);
  }
}

function includes(text, part, message) {
  if (!text.includes(part)) fail(`string [${text}] does not include [${part}]`, message);
}

function hasFields(document, fields, message) {
  if (!Array.isArray(fields)) fail("The second argument to assert.hasFields must be an array.", message);
  const missing = fields.filter((name) => !Object.hasOwn(document, name));
  if (missing.length > 0) fail(`Not all of the values from ${tojson(fields)} were in ${tojson(document)}`, message);
}

// Every field of `subset` is in `document` with the same value.
function docContains(document, subset, message) {
  const differs = Object.keys(subset).filter((name) => bsonWoCompare(subset[name], document[name]) !== 0);
  if (differs.length > 0) fail(`${tojson(document)} differs from ${tojson(subset)} in ${differs}`, message);
}

module.exports = { contains, doesNotContain, containsPrefix, includes, hasFields, docContains };
