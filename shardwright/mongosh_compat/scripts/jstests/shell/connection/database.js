"use strict";
// `DB`: a database of a connection, whose properties are its collections.
const { ErrorCodes, _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { concernOf } = require("../write_concern.js");
const administration = require("./database_admin.js");
const { noteUnknown, refuseFailPoint } = require("./unmet_settings.js");

// Reading a property that a database does not have gives the collection of that name.
const asCollections = {
  get(database, name, receiver) {
    if (typeof name === "symbol" || name in database) return Reflect.get(database, name, receiver);
    if (name.startsWith("_") || name === "toJSON" || name === "then") return undefined;
    return (database._collections[name] ??= receiver.getCollection(name));
  },
};

const SECONDARY_OK = { mode: "secondaryPreferred" };

class DB {
  constructor(mongo, name, session = mongo?._implicitSession) {
    if (typeof name !== "string" || /[ "/\\.]/.test(name) || name === "") {
      throw Object.assign(new Error(`[${tojson(name)}] is not a valid database name`), { code: ErrorCodes.BadValue });
    }
    const unset = { _writeConcern: undefined, _secondaryOk: undefined };
    const hidden = { _mongo: mongo, _name: name, _session: session, _collections: {}, ...unset };
    for (const [field, value] of Object.entries(hidden)) Object.defineProperty(this, field, { value, writable: true });
    return new Proxy(this, asCollections);
  }

  getMongo() {
    return this._mongo;
  }

  getName() {
    return this._name;
  }

  getSession() {
    return this._session;
  }

  getSiblingDB(name) {
    return new DB(this._mongo, name, this._session);
  }

  getCollection(name) {
    const { DBCollection } = require("../collection/collection.js");
    return new DBCollection(this._mongo, this, name, `${this._name}.${name}`);
  }

  // Run a command and return the reply, whether it succeeded or not; `extra` has fields for a command given by its name.
  runCommand(command, extra, queryOptions) {
    return this._run(typeof command === "string" ? { [command]: 1, ...extra } : { ...command, ...extra }, {
      queryOptions,
    }).reply;
  }

  runReadCommand(command, extra, queryOptions) {
    return this.runCommand(command, extra, queryOptions);
  }

  runCommandWithMetadata(command, metadata) {
    return { commandReply: this.runCommand({ ...command, ...metadata }), metadata: {} };
  }

  // Like `runCommand`, with the options of `Mongo._exchange`; returns {reply, hostAndPort}.
  _run(command, options = {}) {
    const ofDatabase = this._secondaryOk ? SECONDARY_OK : undefined;
    const readPreference = options.readPreference ?? this._session.getOptions().getReadPreference() ?? ofDatabase;
    if (command.configureFailPoint !== undefined) refuseFailPoint(command);
    const prepared = this._session._prepare(command);
    const exchange = { ...options, readPreference };
    const reply = this._mongo.runCommand(this._name, prepared, exchange);
    noteUnknown(command, reply);
    if (reply !== null) this._session._note(reply);
    return { reply, hostAndPort: exchange.answeredBy };
  }

  // Run a command that must succeed.
  _runOrThrow(command, what) {
    const reply = this.runCommand(command);
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `${what} failed: ${tojson(reply)}`);
    return reply;
  }

  adminCommand(command, extra) {
    return this._name === "admin"
      ? this.runCommand(command, extra)
      : this.getSiblingDB("admin").runCommand(command, extra);
  }

  createCollection(name, options = {}) {
    return this.runCommand({ create: name, ...options });
  }

  createView(name, source, pipeline, options = {}) {
    return this.runCommand({ create: name, viewOn: source, pipeline: [pipeline].flat(), ...options });
  }

  dropDatabase(writeConcern) {
    return this.runCommand({ dropDatabase: 1, ...(writeConcern ? { writeConcern } : {}) });
  }

  getCollectionInfos(filter, nameOnly = false, authorizedCollections = false) {
    const { DBCommandCursor } = require("../collection/command_cursor.js");
    const byName = typeof filter === "string" ? { name: filter } : (filter ?? {});
    const command = { listCollections: 1, filter: byName, nameOnly, authorizedCollections };
    const { reply, hostAndPort } = this._run(command);
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `listCollections failed: ${tojson(reply)}`);
    const infos = new DBCommandCursor(this, reply, undefined, undefined, undefined, hostAndPort).toArray();
    return infos.sort((left, right) => (left.name < right.name ? -1 : 1));
  }

  getCollectionNames() {
    return this.getCollectionInfos({}, true, true).map((each) => each.name);
  }

  aggregate(...parameters) {
    const { aggregateOn } = require("../collection/aggregate.js");
    return aggregateOn(this, 1, parameters);
  }

  watch(pipeline = [], options = {}) {
    return this._watch(pipeline, options);
  }

  _watch(pipeline = [], options = {}) {
    const { watchOn } = require("../collection/aggregate.js");
    return watchOn(this, 1, pipeline, options);
  }

  setWriteConcern(...parameters) {
    this._writeConcern = concernOf(parameters);
  }

  getWriteConcern() {
    return this._writeConcern ?? this._session.getOptions().getWriteConcern() ?? this._mongo.getWriteConcern();
  }

  unsetWriteConcern() {
    this._writeConcern = undefined;
  }

  setSecondaryOk(value = true) {
    this._secondaryOk = value;
  }

  getSecondaryOk() {
    return this._secondaryOk ?? this._mongo.getSecondaryOk();
  }

  toString() {
    return this._name;
  }

  tojson() {
    return this._name;
  }
}
Object.assign(DB.prototype, { getSisterDB: DB.prototype.getSiblingDB, _adminCommand: DB.prototype.adminCommand });
Object.assign(DB.prototype, { setSlaveOk: DB.prototype.setSecondaryOk, getSlaveOk: DB.prototype.getSecondaryOk });
DB.prototype._dbCommand = DB.prototype.runCommand;
for (const [name, value] of Object.entries(administration.methods)) {
  Object.defineProperty(DB.prototype, name, { value, writable: true, configurable: true });
}

module.exports = { DB };
