"use strict";
// Sessions. A session that a suite starts adds its id, causal consistency, transactions and retryable writes to commands.
// The default session of a connection adds nothing, unless it was made causally consistent.
const { DB } = require("./database.js");
const { ErrorCodes, _getErrorWithCode } = require("../errors.js");
const { NumberLong } = require("../bson_types.js");
const { UUID } = require("../bson_binary.js");

const RETRYABLE = new Set(["insert", "update", "delete", "findAndModify", "findandmodify"]);
const CAUSAL_READS = new Set(["find", "aggregate", "count", "distinct", "listCollections", "listIndexes"]);

class SessionOptions {
  constructor(options = {}) {
    this._options = options;
  }

  getReadPreference() {
    return this._options.readPreference;
  }

  getReadConcern() {
    return this._options.readConcern;
  }

  getWriteConcern() {
    return this._options.writeConcern;
  }

  isCausalConsistency() {
    return this._options.causalConsistency ?? true;
  }

  shouldRetryWrites() {
    return Boolean(this._options.retryWrites);
  }
}

class DriverSession {
  #client;
  #isImplicit;
  #id;
  #txnNumber = -1;
  #transaction = null;
  #operationTime = null;
  #hasEnded = false;

  constructor(client, options, { isImplicit = false } = {}) {
    this.#client = client;
    this.#isImplicit = isImplicit;
    this.#id = { id: UUID() };
    this._options = new SessionOptions(options);
  }

  getClient() {
    return this.#client;
  }

  getOptions() {
    return this._options;
  }

  getSessionId() {
    return this.#isImplicit ? null : this.#id;
  }

  getDatabase(name) {
    return new DB(this.#client, name, this);
  }

  getClusterTime() {
    return this.#client.getClusterTime();
  }

  advanceClusterTime(time) {
    this.#client.advanceClusterTime(time);
  }

  getOperationTime() {
    return this.#operationTime;
  }

  advanceOperationTime(time) {
    if (this.#operationTime === null || time.compare(this.#operationTime) > 0) this.#operationTime = time;
  }

  resetOperationTime_forTesting() {
    this.#operationTime = null;
  }

  getTxnNumber_forTesting() {
    return NumberLong(this.#txnNumber);
  }

  setTxnNumber_forTesting(number) {
    this.#txnNumber = Number(number);
  }

  hasEnded() {
    return this.#hasEnded;
  }

  endSession() {
    if (this.#isImplicit || this.#hasEnded) return;
    if (this.#transaction?.hasStarted) this.abortTransaction();
    this.#hasEnded = true;
    this.#client.adminCommand({ endSessions: [this.#id] });
  }

  // The command as it is sent in this session.
  _prepare(command) {
    if ("lsid" in command) return command;
    if (this.#isImplicit) return this._options.isCausalConsistency() ? this.#causally(command) : command;
    if (this.#hasEnded) throw new Error("the session has ended");
    const prepared = { ...command, lsid: this.#id };
    if (this.getClusterTime()) prepared.$clusterTime = this.getClusterTime();
    const name = Object.keys(command)[0];
    if (this.#transaction !== null) return this.#inTransaction(prepared);
    if (this._options.shouldRetryWrites() && RETRYABLE.has(name) && !("txnNumber" in prepared))
      prepared.txnNumber = NumberLong(++this.#txnNumber);
    return this._options.isCausalConsistency() ? this.#causally(prepared) : prepared;
  }

  // The command; a read gets the session's last operation time, unless the suite gives a time itself.
  #causally(command) {
    if (this.#operationTime === null || !CAUSAL_READS.has(Object.keys(command)[0])) return command;
    const gossiped = this.getClusterTime() ? { $clusterTime: this.getClusterTime() } : {};
    const readConcern = { afterClusterTime: this.#operationTime, ...command.readConcern };
    return { ...command, ...gossiped, readConcern };
  }

  _note(reply) {
    if (reply?.operationTime) this.advanceOperationTime(reply.operationTime);
  }

  startTransaction(options = {}) {
    if (this.#transaction?.state === "active") throw new Error("Transaction already in progress on this session.");
    this.#txnNumber++;
    this.#transaction = { options, hasStarted: false, state: "active" };
  }

  startTransaction_forTesting(options) {
    this.startTransaction(options);
  }

  commitTransaction() {
    this.#require();
    const { reply } = this.#end("commitTransaction");
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `command failed: ${reply.errmsg}`);
  }

  commitTransaction_forTesting() {
    return this.#end("commitTransaction").reply;
  }

  abortTransaction() {
    this.#require();
    this.#end("abortTransaction");
  }

  abortTransaction_forTesting() {
    return this.#end("abortTransaction").reply;
  }

  getTransactionState_forTesting() {
    return this.#transaction?.state ?? "inactive";
  }

  #require() {
    if (this.#transaction === null) {
      throw _getErrorWithCode(
        { code: ErrorCodes.NoSuchTransaction },
        "There is no active transaction to commit or abort on this session.",
      );
    }
  }

  #inTransaction(command) {
    const { options, hasStarted } = this.#transaction;
    const prepared = { ...command, txnNumber: NumberLong(this.#txnNumber), autocommit: false };
    delete prepared.writeConcern;
    if (hasStarted) return prepared;
    this.#transaction.hasStarted = true;
    prepared.startTransaction = true;
    if (options.readConcern) prepared.readConcern = { ...options.readConcern, ...prepared.readConcern };
    return prepared;
  }

  #end(name) {
    const transaction = this.#transaction;
    this.#transaction = null;
    if (!transaction?.hasStarted) return { reply: { ok: 1 } };
    const concern = transaction.options.writeConcern ?? this._options.getWriteConcern();
    const command = { [name]: 1, lsid: this.#id, txnNumber: NumberLong(this.#txnNumber), autocommit: false };
    if (concern) command.writeConcern = concern;
    return this.#client._exchange("admin", command);
  }

  toString() {
    return `session ${this.#id.id.tojson()}`;
  }

  tojson() {
    return this.toString();
  }
}

module.exports = { DriverSession, SessionOptions };
