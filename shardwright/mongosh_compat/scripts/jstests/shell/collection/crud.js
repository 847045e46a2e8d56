"use strict";
// The writes of the CRUD specification: insertOne and others, which throw their errors.
const { BulkWriteError } = require("../write_results.js");
const { Bulk, withId } = require("./bulk.js");

const FIELDS = ["bypassDocumentValidation", "let", "comment"];
const pick = (options, names) =>
  Object.fromEntries(names.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));
const isAcknowledged = (collection, options) => (options.writeConcern ?? collection.getWriteConcern())?.w !== 0;

// Run one operation; a write error is thrown as a WriteError, not as a BulkWriteError.
function runOne(collection, kind, operation, options) {
  const bulk = new Bulk(collection, true, pick(options, FIELDS)).add(kind, operation);
  try {
    return bulk.execute(options.writeConcern);
  } catch (error) {
    if (error instanceof BulkWriteError && error.hasWriteErrors()) throw singleError(error);
    throw error;
  }
}

function singleError(bulkError) {
  const first = bulkError.getWriteErrorAt(0);
  const error = new Error(first.errmsg);
  return Object.assign(error, { name: "WriteError", writeErrors: [first], ...first });
}

function updateResult(collection, result, options) {
  const reported = {
    acknowledged: isAcknowledged(collection, options),
    matchedCount: result.nMatched,
    modifiedCount: result.nModified,
  };
  if (result.nUpserted > 0) reported.upsertedId = result.getUpsertedIdAt(0)._id;
  return reported;
}

function update(collection, filter, change, multi, options) {
  const operation = {
    q: filter,
    u: change,
    multi,
    upsert: Boolean(options.upsert),
    ...pick(options, ["collation", "arrayFilters", "hint"]),
  };
  return updateResult(collection, runOne(collection, "update", operation, options), options);
}

function remove(collection, filter, limit, options) {
  if (filter === undefined) throw new Error("deleteOne and deleteMany need a filter");
  const operation = { q: filter, limit, ...pick(options, ["collation", "hint"]) };
  const result = runOne(collection, "delete", operation, options);
  return { acknowledged: isAcknowledged(collection, options), deletedCount: result.nRemoved };
}

function checkOperators(change, wanted) {
  const hasOperators = Array.isArray(change) || Object.keys(change)[0]?.startsWith("$") === true;
  if (hasOperators !== wanted)
    throw new Error(
      wanted
        ? "the update operation document must contain atomic operators"
        : "the replace operation document must not contain atomic operators",
    );
}

const OPERATIONS = {
  insertOne: (bulk, { document }) => bulk.insert(document),
  updateOne: (bulk, each) => bulk.add("update", updateOf(each, false)),
  updateMany: (bulk, each) => bulk.add("update", updateOf(each, true)),
  replaceOne: (bulk, each) => bulk.add("update", { ...updateOf({ ...each, update: each.replacement }, false) }),
  deleteOne: (bulk, each) => bulk.add("delete", { q: each.filter, limit: 1, ...pick(each, ["collation", "hint"]) }),
  deleteMany: (bulk, each) => bulk.add("delete", { q: each.filter, limit: 0, ...pick(each, ["collation", "hint"]) }),
};

const updateOf = (each, multi) => ({
  q: each.filter,
  u: each.update,
  multi,
  upsert: Boolean(each.upsert),
  ...pick(each, ["collation", "arrayFilters", "hint"]),
});

module.exports = {
  insertOne(document, options = {}) {
    const complete = withId(document);
    runOne(this, "insert", complete, options);
    return { acknowledged: isAcknowledged(this, options), insertedId: complete._id };
  },

  insertMany(documents, options = {}) {
    const bulk = new Bulk(this, options.ordered ?? true, pick(options, FIELDS));
    for (const each of documents) bulk.insert(each);
    const result = bulk.execute(options.writeConcern);
    return { acknowledged: isAcknowledged(this, options), insertedIds: result.getInsertedIds() };
  },

  updateOne(filter, change, options = {}) {
    checkOperators(change, true);
    return update(this, filter, change, false, options);
  },

  updateMany(filter, change, options = {}) {
    checkOperators(change, true);
    return update(this, filter, change, true, options);
  },

  replaceOne(filter, replacement, options = {}) {
    checkOperators(replacement, false);
    return update(this, filter, replacement, false, options);
  },

  deleteOne(filter, options = {}) {
    return remove(this, filter, 1, options);
  },

  deleteMany(filter, options = {}) {
    return remove(this, filter, 0, options);
  },

  bulkWrite(operations, options = {}) {
    const bulk = new Bulk(this, options.ordered ?? true, pick(options, FIELDS));
    for (const each of operations) {
      const [name] = Object.keys(each);
      if (OPERATIONS[name] === undefined) throw new Error(`unknown bulk operation ${name}`);
      OPERATIONS[name](bulk, each[name]);
    }
    const result = bulk.execute(options.writeConcern);
    return {
      acknowledged: isAcknowledged(this, options),
      insertedCount: result.nInserted,
      matchedCount: result.nMatched,
      modifiedCount: result.nModified,
      deletedCount: result.nRemoved,
      upsertedCount: result.nUpserted,
      insertedIds: Object.fromEntries(result.getInsertedIds().map((id, index) => [index, id])),
      upsertedIds: Object.fromEntries(result.getUpsertedIds().map((each) => [each.index, each._id])),
    };
  },
};
