"use strict";
// The plan cache of a collection.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");

class PlanCache {
  constructor(collection) {
    this._collection = collection;
  }

  getName() {
    return this._collection.getFullName();
  }

  list(pipeline = []) {
    return this._collection.aggregate([{ $planCacheStats: {} }, ...pipeline]).toArray();
  }

  clear() {
    this.#clear({});
  }

  // Takes the parts of a query shape, or one document that has them.
  clearPlansByQuery(query, projection, sort) {
    if (query === undefined) throw new Error("required parameter query missing");
    const isShape = projection === undefined && sort === undefined && "query" in query;
    this.#clear(isShape ? query : { query, projection: projection ?? {}, sort: sort ?? {} });
  }

  #clear(shape) {
    const reply = this._collection.runCommand({ planCacheClear: this._collection.getName(), ...shape });
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `planCacheClear failed: ${tojson(reply)}`);
  }
}

const methods = {
  getPlanCache() {
    return new PlanCache(this);
  },
};

module.exports = { PlanCache, methods };
