"use strict";
// Whether values are equal.
const { bsonUnorderedFieldsCompare, bsonWoCompare, sortDoc } = require("../bson_order.js");
const { tojson, tojsononeline } = require("../tojson.js");
const { fail } = require("./failing.js");

// Equality as in the old shell: by ==, as BSON values, or in printed form.
function friendlyEqual(left, right) {
  if (left == right || tojsononeline(left) === tojsononeline(right)) return true;
  if (typeof left !== typeof right && (typeof left !== "object" || typeof right !== "object")) return false;
  if (left === null || right === null || left === undefined || right === undefined) return false;
  if (bsonWoCompare(left, right) !== 0) return false;
  return typeof left === "object" || tojson(left) === tojson(right);
}

const both = (left, right) => `[${tojson(left)}] and [${tojson(right)}] are`;

function eq(left, right, message) {
  if (!friendlyEqual(left, right)) fail(`${both(left, right)} not equal`, message);
}

function neq(left, right, message) {
  if (friendlyEqual(left, right)) fail(`[${tojson(left)}] and [${tojson(right)}] are equal`, message);
}

// The sources are evaluated where `a` and `b` are these sources themselves, as in the old shell.
const evaluate = host.evaluate("(function (a, b) { return [eval(a), eval(b)]; })", "automsg");
eq.automsg = (left, right) => eq(...evaluate(left, right), `[${left}] != [${right}]`);
neq.automsg = (left, right) => neq(...evaluate(left, right), `[${left}] == [${right}]`);

// Documents are equal except for the order of their fields.
function docEq(expected, found, message) {
  if (!isDocEq(expected, found)) {
    fail(
      `expected document ${tojson(sortDoc(expected))} and actual document ${tojson(sortDoc(found))} are not equal`,
      message,
    );
  }
}

function setEq(expected, found, message) {
  const differs = expected.size !== found.size || [...expected].some((each) => !found.has(each));
  if (differs)
    fail(`expected set ${tojson([...expected])} and actual set ${tojson([...found])} are not equal`, message);
}

// Arrays have equal members, in any order.
function sameMembers(left, right, message, isEqual = (a, b) => bsonUnorderedFieldsCompare(a, b) === 0) {
  const missing = [...right];
  for (const each of left) {
    const index = missing.findIndex((other) => isEqual(each, other));
    if (index < 0) return fail(`${tojson(left)} != ${tojson(right)}: ${tojson(each)} is in the first alone`, message);
    missing.splice(index, 1);
  }
  if (missing.length > 0) fail(`${tojson(left)} != ${tojson(right)}: ${tojson(missing)} in the second alone`, message);
}

// As sameMembers, but numbers in these fields need only be close.
function fuzzySameMembers(left, right, fields, message, places = 4) {
  const isEqual = (a, b) => {
    const rest = (document) => Object.fromEntries(Object.entries(document).filter(([name]) => !fields.includes(name)));
    return (
      bsonUnorderedFieldsCompare(rest(a), rest(b)) === 0 && fields.every((name) => isClose(a[name], b[name], places))
    );
  };
  sameMembers(left, right, message, isEqual);
}

const isClose = (a, b, places) => friendlyEqual(a, b) || Math.abs(a - b) < 0.5 * 10 ** -places;

const isnull = (value, message) => {
  if (value !== null && value !== undefined)
    fail(`supposed to be null (${message ?? ""}) was: ${tojson(value)}`, message);
};

module.exports = { eq, neq, docEq, setEq, sameMembers, fuzzySameMembers, isnull, _isDocEq: isDocEq };

function isDocEq(left, right) {
  return left == right || bsonUnorderedFieldsCompare(left, right) === 0;
}

// Not a member of `assert`.
Object.defineProperty(module.exports, "friendlyEqual", { value: friendlyEqual });
