"use strict";
// The old shell's names for BSON types: functions that may be called without `new`, on the classes of the bson package.
const BSON = require("bson");

const { tojson } = require("./tojson.js");

const plainText = (type) => type.prototype.toString;
const longText = plainText(BSON.Long);
const decimalText = plainText(BSON.Decimal128);
const objectIdText = plainText(BSON.ObjectId);

// Make `constructor` the public name of `type`: instances of one are instances of the other.
function rename(constructor, type, methods) {
  Object.defineProperty(constructor, "prototype", { value: type.prototype });
  Object.defineProperty(type.prototype, Symbol.toStringTag, { value: constructor.name, configurable: true });
  for (const [name, method] of Object.entries(Object.getOwnPropertyDescriptors({ constructor, ...methods }))) {
    Object.defineProperty(type.prototype, name, { ...method, configurable: true, enumerable: false });
  }
  return constructor;
}

const NumberLong = rename(
  function NumberLong(value = 0, ...halves) {
    if (halves.length > 0) return longOfHalves(value, ...halves);
    if (value instanceof BSON.Long) return BSON.Long.fromBits(value.low, value.high);
    if (typeof value === "string") return longOfText(value);
    if (!(Number(value) >= -(2 ** 63) && Number(value) < 2 ** 63))
      throw new Error("number passed to NumberLong must be representable as an int64_t");
    return BSON.Long.fromNumber(Number(value));
  },
  BSON.Long,
  {
    toString(radix) {
      return radix === undefined ? this.tojson() : longText.call(this, radix);
    },
    valueOf() {
      return this.toNumber();
    },
    tojson() {
      const text = longText.call(this, 10);
      return Math.abs(this.toNumber()) <= 2 ** 31 - 1 ? `NumberLong(${text})` : `NumberLong("${text}")`;
    },
    toJSON() {
      return { $numberLong: longText.call(this, 10) };
    },
  },
);
for (const [name, get] of Object.entries({
  top: (value) => value.high >>> 0,
  bottom: (value) => value.low >>> 0,
  floatApprox: (value) => value.toNumber(),
  exactValueString: (value) => longText.call(value, 10),
})) {
  Object.defineProperty(BSON.Long.prototype, name, {
    get() {
      return get(this);
    },
    configurable: true,
  });
}

function longOfText(text) {
  const isInteger = /^[+-]?\d+$/.test(text);
  const value = isInteger ? BigInt(text) : 0n;
  if (!isInteger || BigInt.asIntN(64, value) !== value) throw new Error("could not convert string to long long");
  return BSON.Long.fromBigInt(value);
}

// The first number, an approximation, does not matter.
function longOfHalves(approximation, ...halves) {
  const isHalf = (value) => Number.isInteger(value) && value >= 0 && value < 2 ** 32;
  if (typeof approximation !== "number" || halves.length !== 2 || !halves.every(isHalf))
    throw new Error("NumberLong needs a number and two unsigned 32 bit integers");
  const [top, bottom] = halves;
  return BSON.Long.fromBits(bottom | 0, top | 0);
}

const compareLongs = BSON.Long.prototype.compare;
Object.defineProperty(BSON.Long.prototype, "compare", {
  value(...others) {
    if (others.length !== 1 || !(others[0] instanceof BSON.Long)) throw new Error("compare needs a NumberLong");
    return compareLongs.call(this, others[0]);
  },
  configurable: true,
  writable: true,
});

const NumberInt = rename(
  function NumberInt(value = 0) {
    return new BSON.Int32(Number(value));
  },
  BSON.Int32,
  {
    toNumber() {
      return this.value;
    },
    toString() {
      return this.tojson();
    },
    tojson() {
      return `NumberInt(${this.value})`;
    },
  },
);

// A double has 15 digits, as in the old shell.
function textOfDecimal(value) {
  if (value instanceof BSON.Decimal128) return decimalText.call(value);
  if (typeof value === "number" && Number.isFinite(value) && value !== 0) return value.toPrecision(15);
  return String(value?.exactValueString ?? value);
}

const NumberDecimal = rename(
  function NumberDecimal(value = "0") {
    return BSON.Decimal128.fromStringWithRounding(textOfDecimal(value));
  },
  BSON.Decimal128,
  {
    toString() {
      return this.tojson();
    },
    tojson() {
      return `NumberDecimal("${decimalText.call(this)}")`;
    },
    toJSON() {
      return { $numberDecimal: decimalText.call(this) };
    },
  },
);

const ObjectId = rename(
  function ObjectId(text) {
    if (text === undefined) return new BSON.ObjectId();
    if (text instanceof BSON.ObjectId) return text;
    if (typeof text !== "string" || !/^[0-9a-f]{24}$/i.test(text)) throw new Error("invalid object id: length");
    return new BSON.ObjectId(text);
  },
  BSON.ObjectId,
  {
    toString(encoding) {
      return encoding === undefined ? this.tojson() : objectIdText.call(this, encoding);
    },
    valueOf() {
      return this.toHexString();
    },
    tojson() {
      return `ObjectId("${this.toHexString()}")`;
    },
    toJSON() {
      return { $oid: this.toHexString() };
    },
  },
);
Object.defineProperty(BSON.ObjectId.prototype, "isObjectId", { value: true });
Object.defineProperty(BSON.ObjectId.prototype, "str", {
  get() {
    return this.toHexString();
  },
  configurable: true,
});
ObjectId.fromDate = (date) => BSON.ObjectId.createFromTime(Math.floor(date.getTime() / 1000));

const Timestamp = rename(
  function Timestamp(t = 0, i = 0) {
    for (const part of [t, i]) {
      if (!(part >= 0 && part <= 0xffffffff)) throw new Error("Timestamp time and increment must be unsigned 32 bit");
    }
    return new BSON.Timestamp({ t: Number(t), i: Number(i) });
  },
  BSON.Timestamp,
  {
    getTime() {
      return this.t;
    },
    getInc() {
      return this.i;
    },
    toString(radix) {
      return radix === undefined ? this.tojson() : longText.call(this, radix);
    },
    tojson() {
      return `Timestamp(${this.t}, ${this.i})`;
    },
    toJSON() {
      return { $timestamp: { t: this.t, i: this.i } };
    },
  },
);

// Timestamps of the old shell may be changed.
for (const [name, half] of Object.entries({ t: "high", i: "low" })) {
  Object.defineProperty(BSON.Timestamp.prototype, name, {
    get() {
      return this[half] >>> 0;
    },
    set(value) {
      this[half] = Number(value) | 0;
    },
    configurable: true,
  });
}

const DBRef = rename(
  function DBRef(collection, id, database) {
    if (typeof collection !== "string" || id === undefined || !["undefined", "string"].includes(typeof database))
      throw new Error("DBRef needs a collection, an id, and optionally a database");
    return new BSON.DBRef(collection, id, database);
  },
  BSON.DBRef,
  {
    getCollection() {
      return this.collection;
    },
    getRef() {
      return this.collection;
    },
    getId() {
      return this.oid;
    },
    getDb() {
      return this.db;
    },
    toString() {
      return tojson(this);
    },
    // The referenced document, of the current database if the reference names none.
    fetch() {
      const database = this.db ? globalThis.db.getSiblingDB(this.db) : globalThis.db;
      return database.getCollection(this.collection).findOne({ _id: this.oid });
    },
  },
);
for (const [name, field] of [
  ["$ref", "collection"],
  ["$id", "oid"],
  ["$db", "db"],
]) {
  Object.defineProperty(BSON.DBRef.prototype, name, {
    get() {
      return this[field];
    },
    set(value) {
      this[field] = value;
    },
    configurable: true,
  });
}

const Code = rename(
  function Code(code = "", scope) {
    return new BSON.Code(code, scope);
  },
  BSON.Code,
  {},
);

// MinKey and MaxKey are values that may be called.
const callable = (name, type) => {
  const constructor = function () {
    return constructor;
  };
  Object.defineProperty(constructor, "prototype", { value: type.prototype });
  const text = `{ "$${name}" : 1 }`;
  Object.defineProperty(constructor, "toJSON", { value: () => ({ [`$${name}`]: 1 }) });
  for (const target of [type.prototype, constructor]) {
    Object.defineProperty(target, "tojson", { value: () => text });
    Object.defineProperty(target, "toString", { value: () => text });
  }
  return constructor;
};

const MinKey = callable("minKey", BSON.MinKey);
const MaxKey = callable("maxKey", BSON.MaxKey);

module.exports = { NumberLong, NumberInt, NumberDecimal, ObjectId, Timestamp, DBRef, Code, MinKey, MaxKey };
