"use strict";
// The old shell's additions to JavaScript's own objects.
const BSON = require("bson");

const { toBytes } = require("./bson_codec.js");
const { bsonWoCompare } = require("./bson_order.js");
const { tojson } = require("./tojson.js");

function define(target, methods) {
  for (const [name, value] of Object.entries(methods)) {
    Object.defineProperty(target, name, { value, writable: true, configurable: true });
  }
}

define(Object, {
  // Copy the fields of `source` into `target`; `isDeep` copies inner documents too.
  extend(target, source, isDeep) {
    for (const name of Object.keys(source ?? {})) {
      const value = source[name];
      const isCopied =
        isDeep && value !== null && typeof value === "object" && !value._bsontype && !(value instanceof Date);
      target[name] = isCopied ? Object.extend(Array.isArray(value) ? [] : {}, value, true) : value;
    }
    return target;
  },
  merge: (target, source, isDeep) => Object.extend(Object.extend({}, target, isDeep), source, isDeep),
  keySet: (document) => Object.keys(document),
  bsonsize: (document) =>
    document === null ? 0 : toBytes(Array.isArray(document) ? { ...document } : document).length,
  invalidForStorage: () => null,
});

define(Array, {
  contains: (array, value) => array.some((each) => each == value),
  unique: (array) => array.filter((each, index) => array.indexOf(each) === index),
  sum: (array) => (array.length === 0 ? null : array.reduce((total, each) => total + Number(each), 0)),
  avg: (array) => (array.length === 0 ? null : Array.sum(array) / array.length),
  stdDev(array) {
    const mean = Array.avg(array);
    return Math.sqrt(Array.avg(array.map((each) => (each - mean) ** 2)));
  },
  // Shuffles in place.
  shuffle(array) {
    const { Random } = require("./random.js");
    for (let index = array.length - 1; index > 0; index--) {
      const other = Random.randInt(index + 1);
      [array[index], array[other]] = [array[other], array[index]];
    }
    return array;
  },
  tojson: (array, indent, isOneLine) => tojson(array, indent, isOneLine),
  fetchRefs: (array, collection) =>
    array.filter((each) => !collection || each.getCollection() === collection).map((each) => each.fetch()),
});

// Methods of arrays as functions, as in the interpreter of the old shell.
for (const name of ["concat", "filter", "forEach", "indexOf", "join", "map", "push", "reverse", "slice", "some", "sort"])
  define(Array, { [name]: (array, ...parameters) => Array.prototype[name].apply(array, parameters) });

define(String.prototype, {
  ltrim() {
    return this.trimStart();
  },
  rtrim() {
    return this.trimEnd();
  },
  pad(length, isRight, character = " ") {
    return isRight ? this.padStart(length, character) : this.padEnd(length, character);
  },
});

define(Number.prototype, {
  zeroPad(length) {
    return String(this).padStart(length, "0");
  },
  toPercentStr() {
    return `${(this * 100).toFixed(2)}%`;
  },
});

define(Date, {
  // The duration of `times` calls in milliseconds.
  timeFunc(action, times = 1, ...parameters) {
    const started = Date.now();
    for (let done = 0; done < times; done++) action(...parameters);
    return Date.now() - started;
  },
  printAsUTC: true,
});

define(RegExp.prototype, {
  toJSON() {
    return { $regex: this.source, $options: this.flags };
  },
});

define(Date.prototype, {
  tojson() {
    return tojson(this);
  },
});

RegExp.escape ??= (text) => text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");

function ISODate(text) {
  if (text === undefined) return new Date();
  const found =
    /^(\d{4})-?(\d\d)-?(\d\d)(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?$/.exec(
      String(text),
    );
  if (found === null) throw new Error(`invalid ISO date: ${text}`);
  const [, year, month, day, hour = 0, minute = 0, second = 0, fraction = 0, zone = "Z"] = found;
  const [, sign = "+", hours = 0, minutes = 0] = /^([+-])(\d\d):?(\d\d)?$/.exec(zone) ?? [];
  const offset = Number(`${sign}1`) * (Number(hours) * 60 + Number(minutes));
  // Too large fields carry over, and a year below 100 is that year, not one of the 20th century.
  const date = new Date(0);
  date.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  date.setUTCHours(Number(hour), Number(minute) - offset, Number(second), Math.round(Number(`0.${fraction}`) * 1000));
  const carried = date.getUTCFullYear();
  if (carried < 0 || carried > 9999) throw new Error(`invalid ISO date: ${text}`);
  return date;
}

// Distances between points given as documents or arrays of longitude and latitude; on the sphere in radians.
const Geo = {
  distance: (left, right) => Math.hypot(...pairs(left, right).map(([a, b]) => b - a)),
  sphereDistance(left, right) {
    const [longitudes, latitudes] = pairs(left, right).map((pair) => pair.map((each) => (each * Math.PI) / 180));
    const [sines, cosines] = [latitudes.map(Math.sin), latitudes.map(Math.cos)];
    const cosine = sines[0] * sines[1] + cosines[0] * cosines[1] * Math.cos(longitudes[0] - longitudes[1]);
    return Math.acos(Math.min(1, Math.max(-1, cosine)));
  },
};

function pairs(left, right) {
  const [a, b] = [left, right].map((each) => Object.values(each).map(Number));
  return [0, 1].map((index) => [a[index], b[index]]);
}

// A map whose keys are compared as BSON values.
class BSONAwareMap {
  _entries = [];

  _find(key) {
    return this._entries.find((entry) => bsonWoCompare(entry.key, key) === 0);
  }

  get(key) {
    return this._find(key)?.value ?? null;
  }

  put(key, value) {
    const found = this._find(key);
    if (found === undefined) this._entries.push({ key, value });
    else found.value = value;
    return found?.value ?? null;
  }

  values() {
    return this._entries.map((entry) => entry.value);
  }
}

const isNumber = (value) => typeof value === "number";
const isString = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object";
const isNumberObject = (value) => value instanceof BSON.Long || value instanceof BSON.Decimal128;

module.exports = { BSONAwareMap, Geo, ISODate, isNumber, isNumberObject, isObject, isString };
