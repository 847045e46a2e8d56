"use strict";
// The methods of `DB` for administration.
const { _getErrorWithCode, isNetworkError } = require("../errors.js");
const { tojson } = require("../tojson.js");

const admin = (command, what = Object.keys(command)[0]) =>
  function () {
    return this.getSiblingDB("admin")._runOrThrow(command, what);
  };

const getActiveCommands = (commands) =>
  Object.fromEntries(Object.entries(commands).filter(([, counts]) => Number(counts.total) !== 0));

const methods = {
  hello() {
    return this.runCommand({ hello: 1 });
  },

  isMaster() {
    return this.runCommand({ isMaster: 1 });
  },

  stats(scale) {
    return this.runCommand({ dbStats: 1, scale: typeof scale === "object" ? (scale.scale ?? 1) : (scale ?? 1) });
  },

  // Commands that have not run are left out.
  serverStatus(options) {
    const reply = this.adminCommand({ serverStatus: 1, ...options });
    if (reply.metrics?.commands) reply.metrics.commands = getActiveCommands(reply.metrics.commands);
    return reply;
  },

  serverBuildInfo() {
    return this.adminCommand({ buildInfo: 1 });
  },

  serverCmdLineOpts() {
    return this.adminCommand({ getCmdLineOpts: 1 });
  },

  hostInfo: admin({ hostInfo: 1 }),

  listCommands() {
    return this.runCommand({ listCommands: 1 });
  },

  version() {
    return this.serverBuildInfo().version;
  },

  serverBits() {
    return this.serverBuildInfo().bits;
  },

  currentOp(options) {
    const asked = options === true ? { $all: true } : options;
    return this.adminCommand({ currentOp: 1, ...asked });
  },

  killOp(opid) {
    if (opid === undefined) throw new Error("no opNum to kill specified");
    return this.adminCommand({ killOp: 1, op: opid });
  },

  setProfilingLevel(level, options) {
    if (level < 0 || level > 2) throw new Error(`input level ${level} is out of range [0..2]`);
    return this._runOrThrow(
      { profile: level, ...(typeof options === "number" ? { slowms: options } : options) },
      "profile",
    );
  },

  getProfilingStatus() {
    return this._runOrThrow({ profile: -1 }, "profile");
  },

  getProfilingLevel() {
    return this.getProfilingStatus().was;
  },

  getLogComponents() {
    return this.adminCommand({ getParameter: 1, logComponentVerbosity: 1 }).logComponentVerbosity;
  },

  setLogLevel(level, component = "") {
    const path = component === "" ? [] : component.split(".");
    const verbosity = path.reduceRight((inner, name) => ({ [name]: inner }), { verbosity: level });
    return this.adminCommand({ setParameter: 1, logComponentVerbosity: verbosity });
  },

  fsyncLock: admin({ fsync: 1, lock: true }),
  fsyncUnlock: admin({ fsyncUnlock: 1 }),

  shutdownServer(options) {
    try {
      const reply = this.adminCommand({ shutdown: 1, ...options });
      if (reply.ok !== 1) throw _getErrorWithCode(reply, `shutdownServer failed: ${reply.errmsg}`);
    } catch (error) {
      if (!isNetworkError(error)) throw error;
    }
  },

  getLastErrorObj(w, wtimeout, journal) {
    const options = Object.entries({ w, wtimeout, j: journal }).filter(([, value]) => value !== undefined);
    return this.runCommand({ getlasterror: 1, ...Object.fromEntries(options) });
  },

  getLastError(...options) {
    return this.getLastErrorObj(...options).err ?? null;
  },

  createUser(user, writeConcern) {
    const { user: createUser, ...rest } = user;
    return this._runOrThrow({ createUser, ...rest, ...(writeConcern ? { writeConcern } : {}) }, "createUser");
  },

  dropUser(dropUser) {
    return this.runCommand({ dropUser }).ok === 1;
  },

  getUsers() {
    return this._runOrThrow({ usersInfo: 1 }, "usersInfo").users;
  },

  getUser(name) {
    return this._runOrThrow({ usersInfo: name }, "usersInfo").users[0] ?? null;
  },

  createRole(role) {
    const { role: createRole, ...rest } = role;
    return this._runOrThrow({ createRole, ...rest }, "createRole");
  },

  dropRole(dropRole) {
    return this.runCommand({ dropRole }).ok === 1;
  },

  // Returns whether the server accepts the user, as 1 or 0. The parameters are those of `_authOrThrow`.
  auth(...parameters) {
    try {
      this._authOrThrow(...parameters);
      return 1;
    } catch (error) {
      host.write(`Error: ${error.message}\n`);
      return 0;
    }
  },

  // Authenticate with a user and a password, or with the fields of `Mongo.auth`.
  _authOrThrow(user, pwd) {
    const given = typeof user === "string" ? { user, pwd } : { ...user };
    this.getMongo().auth({ db: this.getName(), ...given });
  },

  logout() {
    return this.getMongo().logout(this.getName());
  },

  // Make the functions and values in `system.js` global names.
  loadServerScripts() {
    for (const { _id, value } of this.getCollection("system.js").find().toArray())
      globalThis[_id] = value?._bsontype === "Code" ? host.evaluate(`(${value.code})`, "system.js") : value;
  },

  printShardingStatus(isVerbose) {
    require("../cluster/sharding_status.js").printShardingStatus(this.getSiblingDB("config"), isVerbose);
  },

  printCollectionStats(scale) {
    for (const name of this.getCollectionNames()) {
      host.write(`${name}\n${tojson(this.getCollection(name).stats(scale))}\n---\n`);
    }
  },
};
methods.currentOP = methods.currentOp;

module.exports = { getActiveCommands, methods };
