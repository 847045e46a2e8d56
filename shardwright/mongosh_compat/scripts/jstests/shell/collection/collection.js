"use strict";
// `DBCollection`: a collection of a database, whose properties are the collections with longer names.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { concernOf } = require("../write_concern.js");

const asCollections = {
  get(collection, name, receiver) {
    if (typeof name === "symbol" || name in collection) return Reflect.get(collection, name, receiver);
    return name.startsWith("_") || name === "toJSON" || name === "then" ? undefined : collection.getCollection(name);
  },
};

class DBCollection {
  constructor(mongo, db, shortName, fullName) {
    if (typeof shortName !== "string" || shortName === "")
      throw new Error("collection name must be a non-empty string");
    const unset = { _writeConcern: undefined, _secondaryOk: undefined };
    const hidden = { _mongo: mongo, _db: db, _shortName: shortName, _fullName: fullName, ...unset };
    for (const [field, value] of Object.entries(hidden)) Object.defineProperty(this, field, { value, writable: true });
    return new Proxy(this, asCollections);
  }

  getName() {
    return this._shortName;
  }

  getFullName() {
    return this._fullName;
  }

  getDB() {
    return this._db;
  }

  getMongo() {
    return this._mongo;
  }

  getCollection(name) {
    return this._db.getCollection(`${this._shortName}.${name}`);
  }

  // Run a command whose value is the name of the collection.
  runCommand(command, extra) {
    return this._db.runCommand(typeof command === "string" ? { [command]: this._shortName, ...extra } : command, extra);
  }

  runReadCommand(command, extra) {
    return this.runCommand(command, extra);
  }

  _runOrThrow(command) {
    return this._db._runOrThrow(command, Object.keys(command)[0]);
  }

  // The fields for a write concern, from `options` or set on the collection, its database or its connection.
  _writeConcernFields(options) {
    const concern = options?.writeConcern ?? this.getWriteConcern();
    return concern ? { writeConcern: concern } : {};
  }

  setWriteConcern(...parameters) {
    this._writeConcern = concernOf(parameters);
  }

  getWriteConcern() {
    return this._writeConcern ?? this._db.getWriteConcern();
  }

  unsetWriteConcern() {
    this._writeConcern = undefined;
  }

  setSecondaryOk(value = true) {
    this._secondaryOk = value;
  }

  getSecondaryOk() {
    return this._secondaryOk ?? this._db.getSecondaryOk();
  }

  drop(options) {
    const reply = this.runCommand({ drop: this._shortName, ...options, ...this._writeConcernFields(options) });
    if (reply.ok === 1) return true;
    if (/ns not found/.test(reply.errmsg)) return false;
    throw _getErrorWithCode(reply, `drop failed: ${tojson(reply)}`);
  }

  // Takes the name and whether to drop a collection of that name, or an object with both.
  renameCollection(name, dropTarget = false) {
    const options = typeof name === "object" ? name : { to: name, dropTarget };
    if (typeof options.to !== "string") throw new Error("renameCollection needs the new name as a string");
    const to = `${this._db.getName()}.${options.to}`;
    return this._db.adminCommand({ renameCollection: this._fullName, ...options, to });
  }

  exists() {
    return this._db.getCollectionInfos({ name: this._shortName })[0] ?? null;
  }

  isCapped() {
    return Boolean(this.exists()?.options?.capped);
  }

  convertToCapped(bytes) {
    return this.runCommand({ convertToCapped: this._shortName, size: bytes });
  }

  validate(options) {
    return this.runCommand({
      validate: this._shortName,
      ...(typeof options === "object" ? options : { full: Boolean(options) }),
    });
  }

  compact(options) {
    return this.runCommand({ compact: this._shortName, ...options });
  }

  toString() {
    return this._fullName;
  }

  tojson() {
    return this._fullName;
  }
}

for (const name of ["setSecondaryOk", "getSecondaryOk"])
  DBCollection.prototype[name.replace("Secondary", "Slave")] = DBCollection.prototype[name];

// Add methods that are not enumerable.
function extend(methods) {
  for (const [name, value] of Object.entries(methods)) {
    Object.defineProperty(DBCollection.prototype, name, { value, writable: true, configurable: true });
  }
}

module.exports = { DBCollection };

extend(require("./reads.js"));
extend(require("./legacy_writes.js"));
extend(require("./crud.js"));
extend(require("./find_and_modify.js"));
extend(require("./indexes.js"));
extend(require("./statistics.js"));
extend(require("./bulk.js").methods);
extend(require("./explainable.js").methods);
extend(require("./plan_cache.js").methods);
