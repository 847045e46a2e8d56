"use strict";
// Documents to BSON and back with the types of the old shell: a number is a double, a function is code.
const BSON = require("bson");

const { MinKey, MaxKey } = require("./bson_types.js");

const READ_OPTIONS = { promoteLongs: false, promoteBuffers: false, promoteValues: true };

const EMPTY = Buffer.alloc(0);
const TYPES = { document: 3, array: 4, undefined: 6 };

// Whether the document being encoded contains undefined.
let hasUndefined = false;

function toBytes(document) {
  hasUndefined = false;
  const copy = toBson(document);
  return hasUndefined ? containerToBytes(copy) : serialize(copy);
}

const serialize = (document) => BSON.serialize(document);

// The bson package cannot encode undefined, so containers with it are encoded here.
function containerToBytes(container) {
  const elements = Buffer.concat(Object.keys(container).map((name) => elementToBytes(name, container[name])));
  const length = Buffer.alloc(4);
  length.writeInt32LE(length.length + elements.length + 1);
  return Buffer.concat([length, elements, Buffer.of(0)]);
}

function elementToBytes(name, value) {
  if (value !== undefined && !isContainer(value)) {
    const lone = {};
    setField(lone, name, value);
    return Buffer.from(serialize(lone)).subarray(4, -1);
  }
  const type = value === undefined ? TYPES.undefined : Array.isArray(value) ? TYPES.array : TYPES.document;
  const contents = value === undefined ? EMPTY : containerToBytes(value);
  return Buffer.concat([Buffer.of(type), Buffer.from(name), Buffer.of(0), contents]);
}

function isContainer(value) {
  if (value === null || typeof value !== "object" || value._bsontype) return false;
  return !(value instanceof Date || value instanceof RegExp);
}

const fromBytes = (bytes) => BSON.deserialize(bytes, READ_OPTIONS);

// The deepest nesting of containers that the old shell encodes.
const DEPTH_MAX = 149;

// A copy of `value` in which numbers, functions and Maps are replaced by values that the bson package encodes as the old
// shell would.
function toBson(value, depth = 0) {
  switch (typeof value) {
    case "number":
      return new BSON.Double(value);
    case "function":
      return functionToBson(value);
    case "bigint":
      return BSON.Long.fromBigInt(value);
    case "object":
      return value === null ? null : objectToBson(value, depth);
    case "undefined":
      hasUndefined = true;
      return undefined;
    default:
      return value;
  }
}

function functionToBson(value) {
  if (value === MinKey) return new BSON.MinKey();
  if (value === MaxKey) return new BSON.MaxKey();
  return new BSON.Code(String(value));
}

function objectToBson(value, depth) {
  if (depth >= DEPTH_MAX) throw new Error(`exceeded the depth limit of ${DEPTH_MAX} when converting to BSON`);
  if (Array.isArray(value)) return value.map((each) => toBson(each, depth + 1));
  if (value._bsontype !== undefined && typeof value._bsontype === "string") return value;
  if (value instanceof Date || value instanceof RegExp) return value;
  if (value === Date.prototype) return new Date(NaN);
  if (value === RegExp.prototype) return new RegExp("");
  if (value instanceof Map) return objectToBson(Object.fromEntries(value), depth);
  if (ArrayBuffer.isView(value)) return new BSON.Binary(Buffer.from(value));
  if (value instanceof Number || value instanceof Boolean || value instanceof String) return toBson(value.valueOf(), depth);
  const copy = {};
  for (const name of Object.keys(value)) setField(copy, name, toBson(value[name], depth + 1));
  return copy;
}

function setField(document, name, value) {
  if (name !== "__proto__") document[name] = value;
  else Object.defineProperty(document, name, { value, enumerable: true, configurable: true, writable: true });
}

module.exports = { toBytes, fromBytes };
