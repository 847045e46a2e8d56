"use strict";
// The plan cache of a collection.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");

// The fields of a query shape.
const SHAPES = ["projection,query,sort", "collation,projection,query,sort"];

class PlanCache {
  constructor(collection) {
    this._collection = collection;
  }

  getName() {
    return this._collection.getName();
  }

  help() {
    host.write("\tlist(pipeline)\n\tclear()\n\tclearPlansByQuery(query, projection, sort)\n");
  }

  toString() {
    return `PlanCache for collection ${this.getName()}`;
  }

  tojson() {
    return this.toString();
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
    const names = Object.keys(query).sort().join();
    const isShape = projection === undefined && sort === undefined && SHAPES.includes(names);
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
