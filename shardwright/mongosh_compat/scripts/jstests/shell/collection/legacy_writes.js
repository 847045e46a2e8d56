"use strict";
// insert, update, remove and save: they return errors in their result and throw only if they cannot be sent.
const { ObjectId } = require("../bson_types.js");
const { BulkWriteError, WriteCommandError } = require("../write_results.js");
const { Bulk } = require("./bulk.js");

// Execute; errors become results.
function executed(bulk, writeConcern, isMany) {
  let result;
  try {
    result = bulk.execute(writeConcern);
  } catch (error) {
    if (error instanceof WriteCommandError) return error;
    if (!(error instanceof BulkWriteError)) throw error;
    result = error.toResult();
  }
  return isMany ? result : result.toSingleResult();
}

const fieldsOf = (options) =>
  Object.fromEntries(
    ["bypassDocumentValidation", "let", "comment"]
      .filter((name) => options?.[name] !== undefined)
      .map((name) => [name, options[name]]),
  );

module.exports = {
  insert(documents, options) {
    if (documents === undefined || documents === null || typeof documents !== "object")
      throw new Error("no object passed to insert!");
    const isMany = Array.isArray(documents);
    const ordered = typeof options === "number" ? (options & 1) === 0 : (options?.ordered ?? true);
    const bulk = new Bulk(this, ordered, fieldsOf(options));
    for (const each of isMany ? documents : [documents]) bulk.insert(each);
    if (isMany && documents.length === 0) return bulk.execute();
    return executed(bulk, options?.writeConcern, isMany);
  },

  update(query, update, upsertOrOptions, multi) {
    if (query === undefined) throw new Error("need a query");
    if (update === undefined) throw new Error("need an object");
    const options =
      typeof upsertOrOptions === "object" && upsertOrOptions !== null
        ? upsertOrOptions
        : { upsert: Boolean(upsertOrOptions), multi: Boolean(multi) };
    const operation = { q: query, u: update, multi: Boolean(options.multi), upsert: Boolean(options.upsert) };
    for (const name of ["collation", "arrayFilters", "hint"])
      if (options[name] !== undefined) operation[name] = options[name];
    return executed(new Bulk(this, true, fieldsOf(options)).add("update", operation), options.writeConcern, false);
  },

  remove(query, justOneOrOptions) {
    if (query === undefined) throw new Error("remove needs a query");
    const options =
      typeof justOneOrOptions === "object" && justOneOrOptions !== null
        ? justOneOrOptions
        : { justOne: Boolean(justOneOrOptions) };
    const operation = { q: query instanceof ObjectId ? { _id: query } : query, limit: options.justOne ? 1 : 0 };
    for (const name of ["collation", "hint"]) if (options[name] !== undefined) operation[name] = options[name];
    return executed(new Bulk(this, true, fieldsOf(options)).add("delete", operation), options.writeConcern, false);
  },

  save(document, options) {
    if (document === null || typeof document !== "object") throw new Error(`can't save a ${typeof document}`);
    if (document._id === undefined) {
      document._id = ObjectId();
      return this.insert(document, options);
    }
    return this.update({ _id: document._id }, document, { ...options, upsert: true });
  },
};
