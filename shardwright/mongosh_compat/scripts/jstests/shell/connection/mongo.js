"use strict";
// `Mongo`: the connection that databases, sessions and cursors share.
const { isNetworkError } = require("../errors.js");
const { concernOf } = require("../write_concern.js");
const { checkedAddress, parseAddress } = require("./address.js");
const { DB } = require("./database.js");
const { DriverSession } = require("./session.js");
const { Topology } = require("./topology.js");

const CLUSTER_TIME_PAUSE_MS = 500;

const READS = new Set([
  "find",
  "aggregate",
  "count",
  "distinct",
  "listCollections",
  "listIndexes",
  "dbStats",
  "collStats",
  "explain",
]);

class MongoConnection {
  constructor(address = host.settings.uri ?? "localhost:27017", encryption, options = {}) {
    const { hosts, set, database, options: inUri, given } = parseAddress(String(address?.host ?? address));
    this.host = set === null ? hosts.join(",") : `${set}/${hosts.join(",")}`;
    this.defaultDB = database;
    const hidden = {
      _topology: new Topology(hosts, set !== null),
      _sessions: new Set(),
      _readPreference: null,
      _times: { operationTime: null, clusterTime: null },
      _options: { ...inUri, ...options },
    };
    for (const [name, value] of Object.entries(hidden)) Object.defineProperty(this, name, { value, writable: true });
    const implicit = new DriverSession(this, { causalConsistency: false }, { isImplicit: true });
    Object.defineProperty(this, "_implicitSession", { value: implicit });
    // The system accepts connections even for a process that never answers, so the server must reply to a hello.
    if (set === null) this._exchange("admin", { hello: 1 });
    else this._topology.select("primaryPreferred");
    MongoConnection.open.add(this);
    if (given?.user) this.auth(logInOf(given, inUri));
  }

  static open = new Set();

  get name() {
    return this.host;
  }

  get port() {
    return Number(this.host.split(":").at(-1));
  }

  // Send a command to a database. `options`: sequence, isUnanswered, hostAndPort (that server alone), readPreference.
  // Returns {reply, hostAndPort}.
  _exchange(database, command, options = {}) {
    const preference = options.readPreference ?? this._readPreference;
    const isRead = READS.has(Object.keys(command)[0]);
    const mode = isRead && preference ? preference.mode : "primary";
    const body = { ...command, $db: database };
    if (preference && preference.mode !== "primary" && !("$readPreference" in body)) body.$readPreference = preference;
    const connection = this._topology.select(mode, options.hostAndPort ?? null);
    try {
      const reply = connection.run(body, options);
      if (reply !== null) this._note(reply);
      return { reply, hostAndPort: connection.host };
    } catch (error) {
      if (isNetworkError(error)) this._topology.noteFailure(connection.host);
      throw error;
    }
  }

  _note(reply) {
    this._topology.noteReply(reply);
    const { operationTime, $clusterTime } = reply;
    if (operationTime) this._times.operationTime = operationTime;
    if ($clusterTime) this.advanceClusterTime($clusterTime);
  }

  // All commands of databases pass here, so that a suite can replace it to see them. `options` are those of
  // `_exchange`, or the flags of the old shell; the server's address is added to them as `answeredBy`.
  runCommand(database, command, options) {
    const known = typeof options === "object" ? options : {};
    const isUnanswered = Number(command.writeConcern?.w) === 0;
    const { reply, hostAndPort } = this._exchange(database, command, { ...known, isUnanswered });
    known.answeredBy = hostAndPort;
    return isUnanswered ? { ok: 1 } : reply;
  }

  getDB(name, session = this._implicitSession) {
    return new DB(this, name, session);
  }

  getCollection(namespace) {
    const dot = namespace.indexOf(".");
    return this.getDB(namespace.slice(0, dot)).getCollection(namespace.slice(dot + 1));
  }

  adminCommand(command, extra) {
    return this.getDB("admin").runCommand(command, extra);
  }

  getDBs(session, filter, nameOnly, authorizedDatabases) {
    const command = { listDatabases: 1 };
    for (const [name, value] of Object.entries({ filter, nameOnly, authorizedDatabases }))
      if (value !== undefined) command[name] = value;
    const reply = (session ?? this._implicitSession).getDatabase("admin").runCommand(command);
    if (reply.ok !== 1) throw Object.assign(new Error(`listDatabases failed: ${reply.errmsg}`), { code: reply.code });
    return reply;
  }

  getDBNames() {
    return this.getDBs().databases.map((each) => each.name);
  }

  // `logIn` is {user, pwd, db?, mechanism?, digestPassword?}; throws an error if the server refuses it.
  auth({ db = "admin", ...logIn }) {
    this._topology.logIn({ db, ...logIn });
  }

  logout(database) {
    return this._topology.logOut(database);
  }

  startSession(options = {}) {
    return new DriverSession(this, options);
  }

  _getDefaultSession() {
    return this._implicitSession;
  }

  isMongos() {
    return this.adminCommand({ hello: 1 }).msg === "isdbgrid";
  }

  isReplicaSetMember() {
    return this.adminCommand({ hello: 1 }).setName !== undefined;
  }

  getMinWireVersion() {
    return this.adminCommand({ hello: 1 }).minWireVersion;
  }

  getMaxWireVersion() {
    return this.adminCommand({ hello: 1 }).maxWireVersion;
  }

  setReadPref(mode, tags, hedge) {
    if (mode === null || mode === undefined) return void (this._readPreference = null);
    if (mode === "primary" && tags !== undefined && tags.length > 0)
      throw new Error("Can not supply tagSet with readPref mode primary");
    this._readPreference = { mode, ...(tags ? { tags } : {}), ...(hedge ? { hedge } : {}) };
  }

  getReadPref() {
    return this._readPreference;
  }

  getReadPrefMode() {
    return this._readPreference?.mode ?? "primary";
  }

  getReadPrefTagSet() {
    return this._readPreference?.tags ?? null;
  }

  setSecondaryOk(value = true) {
    this._readPreference = value ? { mode: "secondaryPreferred" } : null;
  }

  getSecondaryOk() {
    return ["secondary", "secondaryPreferred", "nearest"].includes(this.getReadPrefMode());
  }

  // Wait until the server has signed a cluster time, which it cannot before it has keys.
  waitForClusterTime(triesMax = 10) {
    for (let tries = 0; tries < triesMax; tries++) {
      this.adminCommand({ hello: 1 });
      if (this._times.clusterTime !== null) return;
      host.sleep(CLUSTER_TIME_PAUSE_MS);
    }
    throw new Error(`${this.host} sends no cluster time`);
  }

  getClusterTime() {
    return this._times.clusterTime;
  }

  advanceClusterTime(time) {
    const known = this._times.clusterTime;
    if (known === null || time.clusterTime.compare(known.clusterTime) > 0) this._times.clusterTime = time;
  }

  setLogLevel(level, component) {
    return this.getDB("admin").setLogLevel(level, component);
  }

  getLogComponents() {
    return this.getDB("admin").getLogComponents();
  }

  watch(pipeline, options = {}) {
    return this.getDB("admin")._watch(pipeline, { ...options, allChangesForCluster: true });
  }

  setCausalConsistency(causalConsistency = true) {
    this._implicitSession._options._options.causalConsistency = causalConsistency;
  }

  get _causalConsistency() {
    return this.isCausalConsistency();
  }

  isCausalConsistency() {
    return this._implicitSession.getOptions().isCausalConsistency();
  }

  setWriteConcern(...parameters) {
    this._writeConcern = concernOf(parameters);
  }

  getWriteConcern() {
    return this._writeConcern;
  }

  unsetWriteConcern() {
    delete this._writeConcern;
  }

  close() {
    this._topology.close();
    MongoConnection.open.delete(this);
  }

  toString() {
    return `connection to ${this.host}`;
  }

  tojson() {
    return this.toString();
  }
}
for (const [old, current] of [
  ["setSlaveOk", "setSecondaryOk"],
  ["getSlaveOk", "getSecondaryOk"],
]) {
  MongoConnection.prototype[old] = MongoConnection.prototype[current];
}

// The user in a connection string.
const logInOf = ({ user, password, database }, { authSource, authMechanism }) => ({
  user: decodeURIComponent(user),
  pwd: decodeURIComponent(password ?? ""),
  db: authSource ?? (database || "admin"),
  ...(authMechanism ? { mechanism: authMechanism } : {}),
});

// `Mongo(address)` with or without `new`.
function Mongo(...parameters) {
  return new MongoConnection(...parameters);
}
Mongo.prototype = MongoConnection.prototype;
Mongo.open = MongoConnection.open;
MongoConnection.prototype.constructor = Mongo;

// Connect and return the database in the address.
function connect(address) {
  const connection = new MongoConnection(checkedAddress(address));
  return connection.getDB(connection.defaultDB);
}

const closeAll = () => MongoConnection.open.forEach((connection) => connection.close());

module.exports = { Mongo, closeAll, connect };
