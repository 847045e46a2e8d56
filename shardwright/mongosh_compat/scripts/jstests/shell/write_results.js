"use strict";
// The results of the old shell's writes. A single result counts one operation, a bulk result all of them.
const { tojson, tojsononeline } = require("./tojson.js");

class WriteError {
  constructor(error) {
    Object.assign(this, { code: error.code, index: error.index, errmsg: error.errmsg });
    for (const name of ["keyPattern", "keyValue", "errInfo"]) if (error[name] !== undefined) this[name] = error[name];
    Object.defineProperty(this, "op", { value: error.op, enumerable: error.op !== undefined });
  }

  getOperation() {
    return this.op;
  }

  toString() {
    return `WriteError(${tojson(this.toJSON())})`;
  }

  tojson() {
    return this.toString();
  }

  toJSON() {
    return { ...this };
  }
}

class WriteConcernError {
  constructor(error) {
    Object.assign(this, { code: error.code, codeName: error.codeName, errmsg: error.errmsg });
    if (error.errInfo !== undefined) this.errInfo = error.errInfo;
  }

  toString() {
    return `WriteConcernError(${tojson({ ...this })})`;
  }

  tojson() {
    return this.toString();
  }
}

// The failure of a whole write command.
class WriteCommandError extends Error {
  constructor(reply) {
    super(reply.errmsg);
    this.name = "WriteCommandError";
    Object.assign(this, { code: reply.code, codeName: reply.codeName, errmsg: reply.errmsg });
    if (reply.errorLabels !== undefined) this.errorLabels = reply.errorLabels;
    if (reply.errInfo !== undefined) this.errInfo = reply.errInfo;
  }

  tojson() {
    return `WriteCommandError(${tojson({ ...this })})`;
  }

  hasWriteError() {
    return false;
  }

  hasWriteErrors() {
    return false;
  }
}

const COUNTS = ["nInserted", "nUpserted", "nMatched", "nModified", "nRemoved"];

class BulkWriteResult {
  // `bulk` has the counts, and the lists `writeErrors`, `writeConcernErrors` and `upserted` ({index, _id}); the reply of
  // a command lacks the empty ones.
  constructor(bulk) {
    for (const name of COUNTS) this[name] = bulk[name];
    this.ok = 1;
    const lists = { writeErrors: [], writeConcernErrors: [], upserted: [] };
    for (const [name, empty] of Object.entries(lists)) bulk[name] ??= empty;
    Object.defineProperty(this, "_bulk", { value: bulk });
  }

  getUpsertedIds() {
    return this._bulk.upserted;
  }

  getUpsertedIdAt(index) {
    return this._bulk.upserted[index];
  }

  getInsertedIds() {
    return this._bulk.insertedIds;
  }

  getRawResponse() {
    return this._bulk;
  }

  hasWriteErrors() {
    return this._bulk.writeErrors.length > 0;
  }

  hasErrors() {
    return this.hasWriteErrors() || this.hasWriteConcernError();
  }

  getWriteErrorCount() {
    return this._bulk.writeErrors.length;
  }

  getWriteErrorAt(index) {
    return this._bulk.writeErrors[index] ?? null;
  }

  getWriteErrors() {
    return this._bulk.writeErrors;
  }

  hasWriteConcernError() {
    return this._bulk.writeConcernErrors.length > 0;
  }

  getWriteConcernError() {
    return this._bulk.writeConcernErrors[0] ?? null;
  }

  toError() {
    return new BulkWriteError(this._bulk);
  }

  toSingleResult() {
    if (this._bulk.isSingle === false) throw new Error("Cannot output single WriteResult from multiple batch result");
    return new WriteResult(this._bulk);
  }

  tojson() {
    const { writeErrors, writeConcernErrors, upserted } = this._bulk;
    return `BulkWriteResult(${tojson({ writeErrors, writeConcernErrors, ...countsOf(this), upserted })})`;
  }

  toString() {
    return this.tojson();
  }
}

const countsOf = (result) => Object.fromEntries(COUNTS.map((name) => [name, result[name]]));

class BulkWriteError extends Error {
  constructor(bulk) {
    const first = bulk.writeErrors[0] ?? bulk.writeConcernErrors[0];
    const more = bulk.writeErrors.length > 1 ? ` and ${bulk.writeErrors.length - 1} more errors` : "";
    super(
      `${bulk.writeErrors.length > 0 ? "write error at item " + first.index + " in bulk operation" : "write concern error"}${more}: ${first.errmsg}`,
    );
    this.name = "BulkWriteError";
    this.code = first.code;
    Object.assign(this, countsOf(bulk));
    Object.defineProperty(this, "_bulk", { value: bulk });
  }

  toResult() {
    return new BulkWriteResult(this._bulk);
  }

  toSingleResult() {
    return this.toResult().toSingleResult();
  }

  tojson() {
    return `BulkWriteError(${tojson({ ...this.toResult(), writeErrors: this._bulk.writeErrors })})`;
  }
}
for (const name of Object.getOwnPropertyNames(BulkWriteResult.prototype)) {
  if (!(name in BulkWriteError.prototype)) BulkWriteError.prototype[name] = BulkWriteResult.prototype[name];
}

class WriteResult {
  constructor(bulk) {
    this.ok = 1;
    for (const name of COUNTS) this[name] = bulk[name];
    const hidden = {
      _bulk: bulk,
      _error: bulk.writeErrors[0] ?? null,
      _concernError: bulk.writeConcernErrors[0] ?? null,
    };
    for (const [name, value] of Object.entries(hidden)) Object.defineProperty(this, name, { value });
    if (this.nUpserted > 0) Object.defineProperty(this, "_id", { value: this.getUpsertedId()._id });
  }

  getUpsertedId() {
    return this._bulk.upserted[0] ?? null;
  }

  getRawResponse() {
    return this._bulk;
  }

  getWriteError() {
    return this._error;
  }

  hasWriteError() {
    return this._error !== null;
  }

  getWriteConcernError() {
    return this._concernError;
  }

  hasWriteConcernError() {
    return this._concernError !== null;
  }

  tojson() {
    const shown = { ...countsOf(this) };
    if (this.nUpserted > 0) shown._id = this.getUpsertedId()._id;
    if (this._error !== null) shown.writeError = { code: this._error.code, errmsg: this._error.errmsg };
    if (this._concernError !== null) shown.writeConcernError = { ...this._concernError };
    return `WriteResult(${tojsononeline(shown)})`;
  }

  toString() {
    return this.tojson();
  }
}

// The old shell's constructors may be called without `new`.
function callable(type) {
  const constructor = new Proxy(type, { apply: (target, _, parameters) => new target(...parameters) });
  Object.defineProperty(type.prototype, "constructor", { value: constructor, configurable: true, writable: true });
  return constructor;
}

const types = { BulkWriteError, BulkWriteResult, WriteCommandError, WriteConcernError, WriteError, WriteResult };
module.exports = Object.fromEntries(Object.entries(types).map(([name, type]) => [name, callable(type)]));
