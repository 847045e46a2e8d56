"use strict";
// `DBCommandCursor`: the cursor in the reply of a command.
const { _getErrorWithCode } = require("../errors.js");
const { NumberLong } = require("../bson_types.js");
const { tojson } = require("../tojson.js");

class DBCommandCursor {
  // `reply` has the cursor; getMore is sent to `hostAndPort` only, because a set has several servers.
  constructor(db, reply, batchSize, maxAwaitTimeMS, txnNumber, hostAndPort = null) {
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `error: ${tojson(reply)}`);
    const { id, ns, firstBatch, postBatchResumeToken } = reply.cursor;
    const hidden = {
      _db: ns === undefined ? db : db.getSiblingDB(ns.slice(0, ns.indexOf("."))),
      _collName: ns === undefined ? undefined : ns.slice(ns.indexOf(".") + 1),
      _ns: ns,
      _cursorid: id,
      _batch: [...firstBatch].reverse(),
      _batchSize: batchSize,
      _maxAwaitTimeMS: maxAwaitTimeMS,
      _hostAndPort: hostAndPort,
      _resumeToken: postBatchResumeToken,
      _isClosed: false,
    };
    for (const [name, value] of Object.entries(hidden)) Object.defineProperty(this, name, { value, writable: true });
  }

  getId() {
    return this._cursorid;
  }

  getDB() {
    return this._db;
  }

  getResumeToken() {
    return this._resumeToken;
  }

  getBatchSize() {
    return this._batchSize;
  }

  isExhausted() {
    return this.isClosed() && this.objsLeftInBatch() === 0;
  }

  isClosed() {
    return this._isClosed || Number(this._cursorid) === 0;
  }

  objsLeftInBatch() {
    return this._batch.length;
  }

  batchSize(size) {
    this._batchSize = size;
    return this;
  }

  hasNext() {
    while (this._batch.length === 0 && !this.isClosed()) {
      this._getMore();
      if (this._batch.length === 0 && this._mayWait()) return false;
    }
    return this._batch.length > 0;
  }

  // An empty batch of a tailable cursor or change stream means that it has no results at present.
  _mayWait() {
    return this._maxAwaitTimeMS !== undefined || this._resumeToken !== undefined || this._isTailable === true;
  }

  next() {
    if (!this.hasNext()) throw new Error("error hasNext: false");
    const document = this._batch.pop();
    return document;
  }

  tryNext() {
    return this.hasNext() ? this.next() : null;
  }

  _getMore() {
    const command = { getMore: this._cursorid, collection: this._collName };
    if (this._batchSize !== undefined && this._batchSize !== 0) command.batchSize = Math.abs(this._batchSize);
    if (this._maxAwaitTimeMS !== undefined) command.maxTimeMS = this._maxAwaitTimeMS;
    const { reply } = this._db._run(command, { hostAndPort: this._hostAndPort });
    if (reply.ok !== 1) {
      this._cursorid = NumberLong(0);
      throw _getErrorWithCode(reply, `getMore command failed: ${tojson(reply)}`);
    }
    this._cursorid = reply.cursor.id;
    this._batch = reply.cursor.nextBatch.reverse();
    this._resumeToken = reply.cursor.postBatchResumeToken ?? this._resumeToken;
  }

  close() {
    if (!this.isClosed()) {
      this._db._run({ killCursors: this._collName, cursors: [this._cursorid] }, { hostAndPort: this._hostAndPort });
    }
    this._isClosed = true;
    this._cursorid = NumberLong(0);
    this._batch = [];
  }

  toArray() {
    const documents = [];
    while (this.hasNext()) documents.push(this.next());
    return documents;
  }

  itcount() {
    return this.toArray().length;
  }

  forEach(action) {
    while (this.hasNext()) action(this.next());
  }

  map(transform) {
    return this.toArray().map((each) => transform(each));
  }

  pretty() {
    return this;
  }

  help() {
    host.write("next() hasNext() forEach(f) map(f) toArray() itcount() objsLeftInBatch() isExhausted() close()\n");
  }

  *[Symbol.iterator]() {
    while (this.hasNext()) yield this.next();
  }

  tojson() {
    return `DBCommandCursor(${tojson({ ns: this._ns, id: this._cursorid })})`;
  }
}

module.exports = { DBCommandCursor };
