"use strict";
// `DBQuery`: a find that is sent when its first document is requested.
const BSON = require("bson");

const { _getErrorWithCode } = require("../errors.js");
const { NumberInt, NumberLong } = require("../bson_types.js");
const { tojson } = require("../tojson.js");
const { DBCommandCursor } = require("./command_cursor.js");

const FLAGS = {
  tailable: 2,
  slaveOk: 4,
  secondaryOk: 4,
  oplogReplay: 8,
  noTimeout: 16,
  awaitData: 32,
  exhaust: 64,
  partial: 128,
};

// The fields of the find command for flags and for modifiers.
const FLAG_FIELDS = {
  tailable: "tailable",
  noTimeout: "noCursorTimeout",
  awaitData: "awaitData",
  partial: "allowPartialResults",
};
const MODIFIERS = {
  orderby: "sort",
  $hint: "hint",
  $min: "min",
  $max: "max",
  $maxTimeMS: "maxTimeMS",
  $comment: "comment",
  $returnKey: "returnKey",
  $showDiskLoc: "showRecordId",
};

// Numbers in brackets are positions in the result.
const asArray = {
  get(query, name, receiver) {
    return typeof name === "string" && /^\d+$/.test(name)
      ? query._at(Number(name))
      : Reflect.get(query, name, receiver);
  },
};

class DBQuery {
  // `given`: projection, limit, skip, batchSize and other fields of the find command; `flags` of the old protocol.
  constructor(collection, filter, given = {}, { db, namespace } = {}) {
    const { projection, limit, skip, batchSize, flags, ...fields } = given;
    const hidden = {
      _collection: collection,
      _db: db ?? collection.getDB(),
      _namespace: namespace ?? collection.getFullName(),
      _filter: filter,
      _fields: {},
      _cursor: null,
      _flags: 0,
      _self: null,
    };
    for (const [name, value] of Object.entries(hidden)) Object.defineProperty(this, name, { value, writable: true });
    this._self = new Proxy(this, asArray);
    this._addOptions(fields);
    if (projection) this.projection(projection);
    if (limit) this.limit(limit);
    if (skip) this.skip(skip);
    if (batchSize) this.batchSize(batchSize);
    if (flags) this.addOption(flags);
    return this._self;
  }

  _addOptions(fields) {
    for (const [name, value] of Object.entries(fields)) this._set(name, value);
    return this;
  }

  _set(name, value) {
    this._checkModify();
    if (value !== undefined && value !== null) this._fields[name] = value;
    return this._self;
  }

  _checkModify() {
    if (this._cursor !== null) throw new Error("query already executed");
  }

  // The command to send.
  _convertToCommand() {
    const { limit, ...fields } = this._fields;
    const command = { find: this._collection.getName(), filter: this._filter, ...fields };
    if (limit !== undefined && Number(limit) !== 0) command.limit = limit < 0 ? -limit : limit;
    if (limit < 0) command.singleBatch = true;
    if (command.batchSize < 0)
      Object.assign(command, { limit: -command.batchSize, singleBatch: true, batchSize: undefined });
    for (const name of ["limit", "skip", "batchSize"])
      if (command[name] !== undefined) command[name] = integer(command[name]);
    if (command.batchSize === undefined) delete command.batchSize;
    return command;
  }

  _send(command) {
    const ofCollection = this._collection._secondaryOk ? { mode: "secondaryPreferred" } : undefined;
    return this._db._run(command, { readPreference: this._readPreference ?? ofCollection });
  }

  _exec() {
    if (this._cursor !== null) return this._cursor;
    const command = this._convertToCommand();
    const { reply, hostAndPort } = this._send(command);
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `error: ${tojson(reply)}`);
    this._cursor = new DBCommandCursor(
      this._db,
      reply,
      this._fields.batchSize,
      this._maxAwaitTimeMS,
      undefined,
      hostAndPort,
    );
    this._cursor._isTailable = Boolean(this._fields.tailable);
    return this._cursor;
  }

  projection(document) {
    return this._set("projection", document);
  }

  sort(order) {
    return this._set("sort", order);
  }

  limit(number) {
    return this._set("limit", number);
  }

  skip(number) {
    return this._set("skip", number);
  }

  batchSize(number) {
    return this._set("batchSize", number);
  }

  hint(index) {
    return this._set("hint", index);
  }

  min(bound) {
    return this._set("min", bound);
  }

  max(bound) {
    return this._set("max", bound);
  }

  maxTimeMS(milliseconds) {
    return this._set("maxTimeMS", milliseconds);
  }

  comment(text) {
    return this._set("comment", text);
  }

  collation(document) {
    return this._set("collation", document);
  }

  let(variables) {
    return this._set("let", variables);
  }

  allowDiskUse(value = true) {
    return this._set("allowDiskUse", value);
  }

  returnKey() {
    return this._set("returnKey", true);
  }

  showRecordId() {
    return this._set("showRecordId", true);
  }

  noCursorTimeout() {
    return this._set("noCursorTimeout", true);
  }

  allowPartialResults() {
    return this._set("allowPartialResults", true);
  }

  tailable(awaitsData = true) {
    this._set("tailable", true);
    return awaitsData ? this._set("awaitData", true) : this._self;
  }

  maxAwaitTimeMS(milliseconds) {
    this._maxAwaitTimeMS = milliseconds;
    return this._self;
  }

  readConcern(level, atClusterTime) {
    return this._set("readConcern", { level, ...(atClusterTime ? { atClusterTime } : {}) });
  }

  readPref(mode, tags, hedge) {
    this._checkModify();
    this._readPreference = { mode, ...(tags ? { tags } : {}), ...(hedge ? { hedge } : {}) };
    return this._self;
  }

  addOption(flag) {
    if (flag & FLAGS.tailable) this.tailable(Boolean(flag & FLAGS.awaitData));
    if (flag & FLAGS.noTimeout) this.noCursorTimeout();
    if (flag & FLAGS.partial) this.allowPartialResults();
    if (flag & FLAGS.slaveOk) this.readPref("secondaryPreferred");
    return this._self;
  }

  // The flags of the old protocol.
  get _options() {
    const flags = Object.entries(FLAG_FIELDS).filter(([, name]) => this._fields[name]);
    return flags.reduce((sum, [flag]) => sum | FLAGS[flag], this._readPreference ? FLAGS.slaveOk : 0);
  }

  // The filter, or a document of the old protocol that has it with modifiers next to it.
  get _query() {
    const given = Object.entries(MODIFIERS).filter(([, name]) => name in this._fields);
    if (given.length === 0) return this._filter;
    return { query: this._filter, ...Object.fromEntries(given.map(([old, name]) => [old, this._fields[name]])) };
  }

  modifiers(document) {
    for (const [name, value] of Object.entries(document)) this._addSpecial(name, value);
    return this._self;
  }

  _addSpecial(name, value) {
    return this._set(MODIFIERS[name] ?? MODIFIERS[name.slice(1)] ?? name.slice(1), value);
  }

  hasNext() {
    return this._exec().hasNext();
  }

  next() {
    return this._exec().next();
  }

  tryNext() {
    return this._exec().tryNext();
  }

  objsLeftInBatch() {
    return this._exec().objsLeftInBatch();
  }

  isExhausted() {
    return this._exec().isExhausted();
  }

  isClosed() {
    return this._exec().isClosed();
  }

  getId() {
    return this._exec().getId();
  }

  getClusterTime() {
    return this._db.getMongo().getClusterTime();
  }

  close() {
    this._cursor?.close();
  }

  toArray() {
    this._array ??= this._exec().toArray();
    return this._array;
  }

  _at(index) {
    return this.toArray()[index];
  }

  arrayAccess(index) {
    return this._at(index);
  }

  itcount() {
    return this._exec().itcount();
  }

  length() {
    return this.toArray().length;
  }

  forEach(action) {
    this._exec().forEach(action);
  }

  map(transform) {
    return this._exec().map(transform);
  }

  // The number of documents that match; `appliesLimits` counts with skip and limit.
  count(appliesLimits = false) {
    const reply = this._db.runReadCommand(this._countCommand(appliesLimits));
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `count failed: ${tojson(reply)}`);
    return reply.n;
  }

  size() {
    return this.count(true);
  }

  // The number of documents that match, less those that `skip` and `limit` leave out.
  countReturn() {
    const { limit = 0, skip = 0 } = this._fields;
    const rest = this.count() - skip;
    return limit > 0 ? Math.min(limit, rest) : rest;
  }

  _countCommand(appliesLimits) {
    const names = [
      "hint",
      "maxTimeMS",
      "collation",
      "comment",
      "readConcern",
      ...(appliesLimits ? ["limit", "skip"] : []),
    ];
    const fields = Object.fromEntries(
      names.filter((name) => name in this._fields).map((name) => [name, this._fields[name]]),
    );
    return { count: this._collection.getName(), query: this._filter, ...fields };
  }

  explain(verbosity = "queryPlanner") {
    const asked = verbosity === true ? "allPlansExecution" : verbosity || "queryPlanner";
    const { reply } = this._send({ explain: this._convertToCommand(), verbosity: asked });
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `explain failed: ${tojson(reply)}`);
    return reply;
  }

  clone() {
    return new DBQuery(this._collection, this._filter, this._fields);
  }

  getQueryPlan() {
    return this.explain().queryPlanner;
  }

  pretty() {
    return this._self;
  }

  *[Symbol.iterator]() {
    while (this.hasNext()) yield this.next();
  }

  tojson() {
    return tojson(this._convertToCommand());
  }

  toString() {
    return `DBQuery: ${this._namespace} -> ${tojson(this._filter)}`;
  }
}
DBQuery.prototype.showDiskLoc = DBQuery.prototype.showRecordId;

// Numbers of documents are 64-bit integers, as the old shell sends them.
const integer = (value) => {
  if (value instanceof BSON.Long || value instanceof BSON.Int32 || !Number.isInteger(value)) return value;
  return Math.abs(value) < 2 ** 31 ? NumberInt(value) : NumberLong(value);
};

// The public constructor, with the parameters of the old shell.
function OldQuery(mongo, db, collection, namespace, filter = null, projection, limit, skip, batchSize, flags) {
  return new DBQuery(collection, filter, { projection, limit, skip, batchSize, flags }, { db, namespace });
}
Object.assign(OldQuery, { prototype: DBQuery.prototype, Option: FLAGS, shellBatchSize: 20 });

module.exports = { DBQuery, OldQuery };
