"use strict";
// `collection.explain(verbosity)`: the methods of a collection, returning plans.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { DBQuery } = require("./query.js");

// A find that is explained when it is finished.
class DBExplainQuery extends DBQuery {
  finish() {
    this._plan ??= this.explain(this._verbosity);
    return this._plan;
  }

  next() {
    return this.finish();
  }

  hasNext() {
    return this._plan === undefined;
  }

  forEach(action) {
    if (this.hasNext()) action(this.next());
  }

  count(appliesLimits = true) {
    return this._explainable._explain(this._countCommand(appliesLimits));
  }
}

class Explainable {
  constructor(collection, verbosity = "queryPlanner") {
    this._collection = collection;
    this._verbosity = verbosity === true ? "allPlansExecution" : verbosity || "queryPlanner";
  }

  getCollection() {
    return this._collection;
  }

  getVerbosity() {
    return this._verbosity;
  }

  setVerbosity(verbosity) {
    this._verbosity = verbosity;
    return this;
  }

  _explain(command) {
    const reply = this._collection.getDB().runReadCommand({ explain: command, verbosity: this._verbosity });
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `explain failed: ${tojson(reply)}`);
    return reply;
  }

  find(filter = {}, projection) {
    const query = new DBExplainQuery(this._collection, filter, { projection });
    Object.defineProperty(query, "_verbosity", { value: this._verbosity });
    Object.defineProperty(query, "_explainable", { value: this });
    return query;
  }

  findOne(filter, projection) {
    return this.find(filter, projection).limit(1).finish();
  }

  aggregate(...parameters) {
    const [pipeline, options] = Array.isArray(parameters[0]) ? [parameters[0], parameters[1] ?? {}] : [parameters, {}];
    return this._explain({ aggregate: this._collection.getName(), pipeline, cursor: {}, ...options });
  }

  count(query = {}, options = {}) {
    return this._explain({ count: this._collection.getName(), query, ...options });
  }

  distinct(key, query = {}, options = {}) {
    return this._explain({ distinct: this._collection.getName(), key, query, ...options });
  }

  findAndModify(fields) {
    return this._explain({ findAndModify: this._collection.getName(), ...fields });
  }

  mapReduce(map, reduce, optionsOrOut) {
    const options = typeof optionsOrOut === "string" ? { out: optionsOrOut } : optionsOrOut;
    return this._explain({ mapReduce: this._collection.getName(), map, reduce, ...options });
  }

  remove(query, justOneOrOptions) {
    const justOne = typeof justOneOrOptions === "object" ? justOneOrOptions.justOne : justOneOrOptions;
    const { collation, hint } = typeof justOneOrOptions === "object" ? justOneOrOptions : {};
    const operation = {
      q: query,
      limit: justOne ? 1 : 0,
      ...(collation ? { collation } : {}),
      ...(hint ? { hint } : {}),
    };
    return this._explain({ delete: this._collection.getName(), deletes: [operation] });
  }

  update(query, update, upsertOrOptions, multi) {
    const options =
      typeof upsertOrOptions === "object"
        ? upsertOrOptions
        : { upsert: Boolean(upsertOrOptions), multi: Boolean(multi) };
    return this._explain({ update: this._collection.getName(), updates: [{ q: query, u: update, ...options }] });
  }
}

const methods = {
  explain(verbosity) {
    return new Explainable(this, verbosity);
  },
};

module.exports = { Explainable, methods };
