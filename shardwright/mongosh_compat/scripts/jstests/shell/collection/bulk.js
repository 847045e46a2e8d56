"use strict";
// Bulk operations of the old shell: initializeOrderedBulkOp and others, on which all writes are built.
const { ObjectId } = require("../bson_types.js");
const { BulkWriteError, BulkWriteResult } = require("../write_results.js");
const { tojson } = require("../tojson.js");
const { emptyResult, runBatch } = require("./write_batch.js");

function withId(document) {
  if (document === null || typeof document !== "object") throw new Error("an inserted value must be a document");
  return document._id === undefined ? { _id: ObjectId(), ...document } : document;
}

class Bulk {
  #collection;
  #ordered;
  #fields;
  #operations = [];
  #hasExecuted = false;

  // `fields` are more fields of the commands, such as `bypassDocumentValidation`, `let` and `comment`.
  constructor(collection, ordered, fields = {}) {
    this.#collection = collection;
    this.#ordered = ordered;
    this.#fields = fields;
  }

  get nInsertOps() {
    return this.#count("insert");
  }

  get nUpdateOps() {
    return this.#count("update");
  }

  get nRemoveOps() {
    return this.#count("delete");
  }

  get length() {
    return this.#operations.length;
  }

  #count(kind) {
    return this.#operations.filter((each) => each.kind === kind).length;
  }

  // Add an operation in the form of a command's statement; used by all methods that do not chain.
  add(kind, operation) {
    this.#operations.push({ kind, operation });
    return this;
  }

  insert(document) {
    return this.add("insert", withId(document));
  }

  find(filter) {
    if (filter === undefined) throw new Error("find() requires query criteria");
    return new FindOperation(this, filter);
  }

  setLet(variables) {
    this.#fields.let = variables;
    return this;
  }

  execute(writeConcern) {
    if (this.#hasExecuted) throw new Error("A bulk operation cannot be re-executed");
    this.#hasExecuted = true;
    const concern = writeConcern ?? this.#collection.getWriteConcern();
    const fields = { ...this.#fields, ...(concern ? { writeConcern: plainConcern(concern) } : {}) };
    const result = emptyResult();
    for (const [index, { kind, operation }] of this.#operations.entries())
      if (kind === "insert") result.insertedIds.push({ index, _id: operation._id });
    const batches = this.#batches();
    result.isSingle = batches.length === 1;
    for (const { kind, operations, indexes } of batches) {
      if (!runBatch(this.#collection, kind, operations, indexes, { ordered: this.#ordered, fields }, result)) break;
    }
    if (result.writeErrors.length > 0 || result.writeConcernErrors.length > 0) throw new BulkWriteError(result);
    return new BulkWriteResult(result);
  }

  // Operations that go into one command: neighbours of one kind.
  #batches() {
    const batches = [];
    for (const [index, { kind, operation }] of this.#operations.entries()) {
      if (batches.at(-1)?.kind !== kind) batches.push({ kind, operations: [], indexes: [] });
      batches.at(-1).operations.push(operation);
      batches.at(-1).indexes.push(index);
    }
    return batches;
  }

  tojson() {
    return tojson({ nInsertOps: this.nInsertOps, nUpdateOps: this.nUpdateOps, nRemoveOps: this.nRemoveOps });
  }

  toString() {
    return this.tojson();
  }
}

const plainConcern = (concern) => (typeof concern.toJSON === "function" ? concern.toJSON() : concern);

class FindOperation {
  #bulk;
  #filter;
  #options = {};

  constructor(bulk, filter) {
    this.#bulk = bulk;
    this.#filter = filter;
  }

  upsert() {
    this.#options.upsert = true;
    return this;
  }

  collation(document) {
    this.#options.collation = document;
    return this;
  }

  arrayFilters(filters) {
    this.#options.arrayFilters = filters;
    return this;
  }

  hint(index) {
    this.#options.hint = index;
    return this;
  }

  #add(update, multi) {
    return this.#bulk.add("update", { q: this.#filter, u: update, multi, upsert: false, ...this.#options });
  }

  update(update) {
    return this.#add(update, true);
  }

  updateOne(update) {
    return this.#add(update, false);
  }

  replaceOne(replacement) {
    return this.#add(replacement, false);
  }

  #delete(limit) {
    const { upsert, arrayFilters, ...options } = this.#options;
    return this.#bulk.add("delete", { q: this.#filter, limit, ...options });
  }

  remove() {
    return this.#delete(0);
  }

  removeOne() {
    return this.#delete(1);
  }
}
FindOperation.prototype.delete = FindOperation.prototype.remove;
FindOperation.prototype.deleteOne = FindOperation.prototype.removeOne;

const methods = {
  initializeOrderedBulkOp() {
    return new Bulk(this, true);
  },

  initializeUnorderedBulkOp() {
    return new Bulk(this, false);
  },
};

module.exports = { Bulk, methods, withId };
