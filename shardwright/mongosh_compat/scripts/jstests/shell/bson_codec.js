"use strict";
// Documents to BSON and back with the types of the old shell: a number is a double, a function is code.
const BSON = require("bson");

const { MinKey, MaxKey } = require("./bson_types.js");

const READ_OPTIONS = { promoteLongs: false, promoteBuffers: false, promoteValues: true };

const toBytes = (document) => BSON.serialize(toBson(document), { ignoreUndefined: false });
const fromBytes = (bytes) => BSON.deserialize(bytes, READ_OPTIONS);

// `value` with every number, function and Map in it replaced by what the bson package writes as the old shell does.
function toBson(value) {
  switch (typeof value) {
    case "number":
      return new BSON.Double(value);
    case "function":
      return functionToBson(value);
    case "bigint":
      return BSON.Long.fromBigInt(value);
    case "object":
      return value === null ? null : objectToBson(value);
    default:
      return value;
  }
}

function functionToBson(value) {
  if (value === MinKey) return new BSON.MinKey();
  if (value === MaxKey) return new BSON.MaxKey();
  return new BSON.Code(String(value));
}

function objectToBson(value) {
  if (Array.isArray(value)) return value.map(toBson);
  if (value._bsontype !== undefined && typeof value._bsontype === "string") return value;
  if (value instanceof Date || value instanceof RegExp) return value;
  if (value instanceof Map) return objectToBson(Object.fromEntries(value));
  if (ArrayBuffer.isView(value)) return new BSON.Binary(Buffer.from(value));
  if (value instanceof Number || value instanceof Boolean || value instanceof String) return toBson(value.valueOf());
  const copy = {};
  for (const name of Object.keys(value)) setField(copy, name, toBson(value[name]));
  return copy;
}

function setField(document, name, value) {
  if (name !== "__proto__") document[name] = value;
  else Object.defineProperty(document, name, { value, enumerable: true, configurable: true, writable: true });
}

module.exports = { toBytes, fromBytes };
