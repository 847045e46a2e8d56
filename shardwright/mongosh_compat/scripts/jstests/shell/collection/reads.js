"use strict";
// The methods of `DBCollection` that read documents.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { aggregateOn, watchOn } = require("./aggregate.js");
const { DBQuery } = require("./query.js");

function checked(reply, what) {
  if (reply.ok !== 1) throw _getErrorWithCode(reply, `${what} failed: ${tojson(reply)}`);
  return reply;
}

// The query of a filter, which may be a function or source as with $where, or an id.
function filterOf(query) {
  if (query === undefined || query === null) return {};
  if (typeof query === "function" || typeof query === "string") return { $where: query };
  return query._bsontype === "ObjectId" ? { _id: query } : query;
}

module.exports = {
  find(filter, projection, limit, skip, batchSize, options) {
    return new DBQuery(this, filterOf(filter), {
      projection,
      limit,
      skip,
      batchSize,
      ...(typeof options === "object" ? options : { flags: options }),
    });
  },

  findOne(filter, projection, options, readConcern, collation) {
    const cursor = this.find(filter, projection).limit(-1);
    if (readConcern !== undefined) cursor.readConcern(readConcern);
    if (collation !== undefined) cursor.collation(collation);
    if (typeof options === "object" && options !== null) cursor._addOptions(options);
    return cursor.hasNext() ? cursor.next() : null;
  },

  count(filter, options = {}) {
    return this.find(filter)._addOptions(options).count(true);
  },

  countDocuments(filter, options = {}) {
    const { skip, limit, ...rest } = options;
    const pipeline = [{ $match: filter ?? {} }];
    if (skip !== undefined) pipeline.push({ $skip: skip });
    if (limit !== undefined) pipeline.push({ $limit: limit });
    pipeline.push({ $group: { _id: 1, n: { $sum: 1 } } });
    return this.aggregate(pipeline, rest).toArray()[0]?.n ?? 0;
  },

  estimatedDocumentCount(options = {}) {
    return checked(this.runCommand({ count: this._shortName, ...options }), "count").n;
  },

  distinct(key, query, options = {}) {
    if (typeof key !== "string")
      throw new Error(`The first argument to the distinct command must be a string but was a ${typeof key}`);
    if (query !== undefined && (query === null || typeof query !== "object"))
      throw new Error("The query argument to the distinct command must be a document");
    return checked(this.runReadCommand({ distinct: this._shortName, key, query: query ?? {}, ...options }), "distinct")
      .values;
  },

  aggregate(...parameters) {
    return aggregateOn(this._db, this._shortName, parameters);
  },

  watch(pipeline = [], options = {}) {
    return watchOn(this._db, this._shortName, pipeline, options);
  },

  // A field of all documents, by their _ids.
  convertToSingleObject(field) {
    return Object.fromEntries(this.find().map((each) => [each._id, each[field]]));
  },

  // The last parameter has options, or receives the results.
  mapReduce(map, reduce, optionsOrOut) {
    const options = typeof optionsOrOut === "string" ? { out: optionsOrOut } : optionsOrOut;
    if (options?.out === undefined) throw new Error("need to supply an optionsOrOutString");
    const reply = checked(this._db.runCommand({ mapReduce: this._shortName, map, reduce, ...options }), "map reduce");
    return new MapReduceResult(this._db, reply);
  },
};

class MapReduceResult {
  constructor(db, reply) {
    Object.assign(this, reply);
    const target =
      typeof reply.result === "object"
        ? db.getSiblingDB(reply.result.db)[reply.result.collection]
        : reply.result && db[reply.result];
    Object.defineProperty(this, "_target", { value: target });
  }

  find(...parameters) {
    if (this.results !== undefined) return this.results;
    return this._target.find(...parameters);
  }

  convertToSingleObject() {
    const all = this.results ?? this._target.find().toArray();
    return Object.fromEntries(all.map((each) => [each._id, each.value]));
  }

  drop() {
    return this._target?.drop();
  }
}
