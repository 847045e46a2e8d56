"use strict";
// Sending write operations as commands, and adding up their replies.
const { toBytes } = require("../bson_codec.js");
const { WriteCommandError, WriteConcernError, WriteError } = require("../write_results.js");

const BATCH_OPERATIONS_MAX = 100_000;
const BATCH_BYTES_MAX = 47_000_000;

const SEQUENCES = { insert: "documents", update: "updates", delete: "deletes" };

const emptyResult = () => ({
  nInserted: 0,
  nUpserted: 0,
  nMatched: 0,
  nModified: 0,
  nRemoved: 0,
  writeErrors: [],
  writeConcernErrors: [],
  upserted: [],
  insertedIds: [],
});

// Run operations of one kind and add their outcome to `result`. `indexes` are their places in the whole bulk; `fields`
// are more fields of the command. Returns whether to continue.
// Throws a WriteCommandError if a command fails as a whole.
function runBatch(collection, kind, operations, indexes, { ordered, fields }, result) {
  for (const [start, documents] of pieces(operations)) {
    const command = { [kind]: collection.getName(), ordered, ...fields };
    const { reply } = collection.getDB()._run(command, { sequence: { identifier: SEQUENCES[kind], documents } });
    if (reply.ok !== 1) throw new WriteCommandError(reply);
    const failed = add(
      result,
      kind,
      reply,
      (index) => indexes[start + index],
      (index) => operations[start + index],
    );
    if (ordered && failed) return false;
  }
  return true;
}

// The operations as bytes, in pieces that a server accepts.
function* pieces(operations) {
  let start = 0;
  let documents = [];
  let size = 0;
  for (const [index, operation] of operations.entries()) {
    const bytes = toBytes(operation);
    if (documents.length === BATCH_OPERATIONS_MAX || (documents.length > 0 && size + bytes.length > BATCH_BYTES_MAX)) {
      yield [start, documents];
      [start, documents, size] = [index, [], 0];
    }
    documents.push(bytes);
    size += bytes.length;
  }
  if (documents.length > 0) yield [start, documents];
}

function add(result, kind, reply, indexOf, operationOf) {
  const { n = 0, upserted = [] } = reply; // an unacknowledged write has no numbers
  if (kind === "insert") result.nInserted += n;
  if (kind === "delete") result.nRemoved += n;
  if (kind === "update") {
    result.nUpserted += upserted.length;
    result.nMatched += n - upserted.length;
    result.nModified += reply.nModified ?? 0;
  }
  for (const each of upserted) result.upserted.push({ index: indexOf(each.index), _id: each._id });
  for (const each of reply.writeErrors ?? []) {
    result.writeErrors.push(new WriteError({ ...each, index: indexOf(each.index), op: operationOf(each.index) }));
  }
  if (reply.writeConcernError) result.writeConcernErrors.push(new WriteConcernError(reply.writeConcernError));
  return (reply.writeErrors ?? []).length > 0;
}

module.exports = { emptyResult, runBatch };
