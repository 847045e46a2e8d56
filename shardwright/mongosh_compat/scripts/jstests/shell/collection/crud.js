"use strict";
// The writes of the CRUD specification: insertOne and others, which throw their errors.
const { BulkWriteError } = require("../write_results.js");
const { Bulk, withId } = require("./bulk.js");

const FIELDS = ["bypassDocumentValidation", "let", "comment"];
const pick = (options, names) =>
  Object.fromEntries(names.filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));

// The write concern of options, which may have its fields instead.
function concernOf(options) {
  const fields = pick(options, ["w", "wtimeout", "j"]);
  return options.writeConcern ?? (Object.keys(fields).length > 0 ? fields : undefined);
}

// What a method returns: an unacknowledged write has no other fields.
function reported(collection, options, fields) {
  const acknowledged = (concernOf(options) ?? collection.getWriteConcern())?.w !== 0;
  return acknowledged ? { acknowledged, ...fields } : { acknowledged };
}

// Run one operation; a write error is thrown as a WriteError, not as a BulkWriteError.
function runOne(collection, kind, operation, options) {
  const bulk = new Bulk(collection, true, pick(options, FIELDS)).add(kind, operation);
  try {
    return bulk.execute(concernOf(options));
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
  const counts = { matchedCount: result.nMatched, modifiedCount: result.nModified };
  const upserted = result.nUpserted > 0 ? { upsertedId: result.getUpsertedIdAt(0)._id } : {};
  return reported(collection, options, { ...counts, ...upserted });
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
  return reported(collection, options, { deletedCount: result.nRemoved });
}

function checkOperators(change, wanted) {
  if (!wanted && Array.isArray(change)) throw new Error("a replacement must not be a pipeline");
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
  replaceOne(bulk, each) {
    checkOperators(each.replacement, false);
    bulk.add("update", updateOf({ ...each, update: each.replacement }, false));
  },
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

const idsByIndex = (ids) => Object.fromEntries(ids.map((each) => [each.index, each._id]));

module.exports = {
  insertOne(document, options = {}) {
    const complete = withId(document);
    runOne(this, "insert", complete, options);
    return reported(this, options, { insertedId: complete._id });
  },

  insertMany(documents, options = {}) {
    const bulk = new Bulk(this, options.ordered ?? true, pick(options, FIELDS));
    for (const each of documents) bulk.insert(each);
    const result = bulk.execute(concernOf(options));
    return reported(this, options, { insertedIds: result.getInsertedIds().map((each) => each._id) });
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
    const result = bulk.execute(concernOf(options));
    return reported(this, options, {
      insertedCount: result.nInserted,
      matchedCount: result.nMatched,
      deletedCount: result.nRemoved,
      upsertedCount: result.nUpserted,
      insertedIds: idsByIndex(result.getInsertedIds()),
      upsertedIds: idsByIndex(result.getUpsertedIds()),
    });
  },
};
