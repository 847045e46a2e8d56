"use strict";
// Assertions about the order of values and the distance of numbers.
const BSON = require("bson");

const { bsonWoCompare } = require("../bson_order.js");
const { tojson } = require("../tojson.js");
const { fail } = require("./failing.js");

// Timestamps, ids and documents compare as BSON values, all others by JavaScript's operators.
const isBson = (value) =>
  value !== null && typeof value === "object" && !(value instanceof Date) && !(value instanceof BSON.Long);
const isTimestamp = (value) => value instanceof BSON.Timestamp;
const compare = (left, right) => {
  if (isTimestamp(left) || (isBson(left) && isBson(right))) return bsonWoCompare(left, right);
  return left < right ? -1 : left > right ? 1 : left >= right ? 0 : NaN;
};

const check = (holds, operator) => (left, right, message) => {
  if (!holds(compare(left, right))) fail(`${tojson(left)} is not ${operator} ${tojson(right)}`, message);
};

const lt = check((order) => order < 0, "less than");
const gt = check((order) => order > 0, "greater than");
const lte = check((order) => order <= 0, "less than or eq");
const gte = check((order) => order >= 0, "greater than or eq");

function between(low, value, high, message, isInclusive = true) {
  const isInside = isInclusive
    ? compare(low, value) <= 0 && compare(value, high) <= 0
    : compare(low, value) < 0 && compare(value, high) < 0;
  if (!isInside) fail(`${tojson(value)} is not between ${tojson(low)} and ${tojson(high)}`, message);
}

const betweenIn = (low, value, high, message) => between(low, value, high, message, true);
const betweenEx = (low, value, high, message) => between(low, value, high, message, false);

// The relative error is below half of the last of `places` decimal places.
function close(left, right, message, places = 4) {
  const difference = Math.abs(left - right);
  const error = right === 0 || left === 0 ? difference : difference / Math.abs(right);
  if (!(difference === 0 || error < 0.5 * 10 ** -places)) {
    fail(`${left} is not equal to ${right} within ${places} places, absolute error: ${difference}`, message);
  }
}

function closeWithinMS(left, right, message, milliseconds = 1000) {
  const difference = Math.abs(left - right);
  if (!(difference <= milliseconds))
    fail(`${tojson(left)} is not equal to ${tojson(right)} within ${milliseconds} ms`, message);
}

module.exports = { lt, gt, lte, gte, between, betweenIn, betweenEx, close, closeWithinMS };
