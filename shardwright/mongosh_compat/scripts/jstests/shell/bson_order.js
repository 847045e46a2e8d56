"use strict";
// The server's order of BSON values.
const BSON = require("bson");

const { toBytes } = require("./bson_codec.js");
const { MinKey, MaxKey } = require("./bson_types.js");

const sign = (left, right) => (left < right ? -1 : left > right ? 1 : 0);
const compareBytes = (left, right) => Math.sign(Buffer.compare(Buffer.from(left), Buffer.from(right)));

const RANKS = {
  MinKey: -1,
  Long: 10,
  Int32: 10,
  Double: 10,
  Decimal128: 10,
  BSONSymbol: 15,
  Binary: 30,
  ObjectId: 35,
  Timestamp: 47,
  BSONRegExp: 50,
  DBRef: 20,
  Code: 60,
  MaxKey: 127,
};

// The place of a value's type among all types.
function rankOf(value) {
  if (value === MinKey) return RANKS.MinKey;
  if (value === MaxKey) return RANKS.MaxKey;
  switch (typeof value) {
    case "undefined":
      return 0;
    case "number":
      return 10;
    case "string":
      return 15;
    case "boolean":
      return 40;
    case "function":
      return 60;
  }
  if (value === null) return 5;
  if (Array.isArray(value)) return 25;
  if (value instanceof Date) return 45;
  if (value instanceof RegExp) return 50;
  return RANKS[value._bsontype] ?? 20;
}

// Negative, 0 or positive; `ignoresNames` compares only the values of fields.
function compare(left, right, { ignoresNames = false } = {}) {
  const rank = rankOf(left);
  const byType = sign(rank, rankOf(right));
  if (byType !== 0) return byType;
  switch (rank) {
    case 10:
      return compareNumbers(left, right);
    case 15:
      return compareBytes(Buffer.from(String(left)), Buffer.from(String(right)));
    case 20:
      return compareDocuments(fieldsOf(left), fieldsOf(right), ignoresNames);
    case 25:
      return compareDocuments(Object.entries(left), Object.entries(right), ignoresNames);
    case 30:
      return (
        sign(left.position, right.position) || sign(left.sub_type, right.sub_type) || sign(left.hex(), right.hex())
      );
    case 35:
      return sign(left.toHexString(), right.toHexString());
    case 40:
    case 45:
      return sign(left.valueOf(), right.valueOf());
    case 47:
      return sign(left.t, right.t) || sign(left.i, right.i);
    case 50:
    case 60:
      return sign(String(left.code ?? left), String(right.code ?? right));
    default:
      return 0;
  }
}

function compareNumbers(left, right) {
  if (left instanceof BSON.Long && right instanceof BSON.Long) return left.compare(right);
  const [a, b] = [numberOf(left), numberOf(right)];
  if (Number.isNaN(a) || Number.isNaN(b)) return sign(Number.isNaN(b), Number.isNaN(a));
  return sign(a, b);
}

const numberOf = (value) => (value instanceof BSON.Decimal128 ? Number(value.toJSON().$numberDecimal) : Number(value));

function fieldsOf(value) {
  if (!(value instanceof BSON.DBRef)) return Object.entries(value);
  const own = [
    ["$ref", value.collection],
    ["$id", value.oid],
  ];
  return [...own, ...(value.db ? [["$db", value.db]] : []), ...Object.entries(value.fields ?? {})];
}

function compareDocuments(left, right, ignoresNames) {
  for (let index = 0; index < Math.min(left.length, right.length); index++) {
    const [[leftName, leftValue], [rightName, rightValue]] = [left[index], right[index]];
    const order =
      sign(rankOf(leftValue), rankOf(rightValue)) ||
      (ignoresNames ? 0 : sign(leftName, rightName)) ||
      compare(leftValue, rightValue, { ignoresNames });
    if (order !== 0) return order;
  }
  return sign(left.length, right.length);
}

// A copy with the fields of all documents in it sorted by name.
function sortDoc(value) {
  if (Array.isArray(value)) return value.map(sortDoc);
  if (value === null || typeof value !== "object" || rankOf(value) !== 20 || value._bsontype) return value;
  return Object.fromEntries(
    Object.keys(value)
      .sort()
      .map((name) => [name, sortDoc(value[name])]),
  );
}

const bsonWoCompare = (left, right) => compare(left, right);
const bsonUnorderedFieldsCompare = (left, right) => compare(sortDoc(left), sortDoc(right));
const timestampCmp = (left, right) => Math.sign(compare(left, right));
const bsonBinaryEqual = (left, right) => compareBytes(bytesOf(left), bytesOf(right)) === 0;
// The old shell encodes a document with its _id first.
const bytesOf = (value) => toBytes({ value: hasId(value) ? { _id: value._id, ...value } : value });
const hasId = (value) => value?.constructor === Object && "_id" in value;

module.exports = { bsonWoCompare, bsonUnorderedFieldsCompare, bsonBinaryEqual, sortDoc, timestampCmp };
