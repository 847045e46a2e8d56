"use strict";
// `--compat 4.4`: suites that were written for the catalog of MongoDB 4.4. Since 5.0 chunks name their collection by
// its `uuid` and no longer by `ns`, so an `ns` in a query of `config.chunks` is replaced by the collections' UUIDs.
// Connections have the methods that chose between commands and the opcodes which 5.1 has removed. Events of change
// streams lack `wallTime`, which 6.0 has added.
const { bsonWoCompare } = require("./bson_order.js");
const { fromBytes, toBytes } = require("./bson_codec.js");
const { unsupported } = require("./errors.js");

const CHUNKS = "chunks";
const QUERIES = { find: "filter", count: "query", distinct: "query", findAndModify: "query", findandmodify: "query" };

// `run` exchanges a command as `Mongo._exchange` does.
function translate(database, command, options, run) {
  const name = Object.keys(command)[0];
  if (name === "explain") {
    const [inner] = translate(database, command.explain, {}, run);
    return [{ ...command, explain: inner }, options];
  }
  if (database !== "config" || command[name] !== CHUNKS) return [command, options];
  const query = (filter) => withUuids(filter, run);
  if (name === "aggregate") return [{ ...command, pipeline: pipelineOf(command.pipeline, query) }, options];
  const field = QUERIES[name];
  if (field !== undefined && command[field]) return [{ ...command, [field]: query(command[field]) }, options];
  const { sequence } = options;
  if (sequence === undefined || sequence.identifier === "documents") return [command, options];
  const documents = sequence.documents.map((bytes) => {
    const statement = fromBytes(bytes);
    return toBytes({ ...statement, q: query(statement.q) });
  });
  return [command, { ...options, sequence: { ...sequence, documents } }];
}

function pipelineOf(pipeline, query) {
  if (!Array.isArray(pipeline)) return pipeline;
  return pipeline.map((stage) => (stage?.$match ? { $match: query(stage.$match) } : stage));
}

function withUuids(filter, run) {
  if (!filter || !("ns" in filter)) return filter;
  const { ns: namespace, ...others } = filter;
  const uuids = uuidsOf(namespace, run);
  return { uuid: uuids.length === 1 ? uuids[0] : { $in: uuids }, ...others };
}

function uuidsOf(namespace, run) {
  const find = { find: "collections", filter: { _id: namespace }, projection: { uuid: 1 }, batchSize: 10_000 };
  return run("config", find).reply.cursor.firstBatch.map((each) => each.uuid).sort(bsonWoCompare);
}

const isEvent = (document) => document?.operationType !== undefined && document._id?._data !== undefined;

function withoutWallTimes(answer) {
  const { firstBatch = [], nextBatch = [] } = answer?.reply?.cursor ?? {};
  for (const each of [...firstBatch, ...nextBatch]) if (isEvent(each)) delete each.wallTime;
  return answer;
}

function requireCommands(mode) {
  if (mode !== "commands" && mode !== "compatibility") unsupported("opcodes before OP_MSG");
}

const MODES = {
  readMode: () => "commands",
  writeMode: () => "commands",
  useReadCommands: () => true,
  useWriteCommands: () => true,
  forceReadMode: requireCommands,
  forceWriteMode: requireCommands,
  _runWithForcedReadMode(mode, action) {
    requireCommands(mode);
    return action();
  },
};

// Translate the commands and replies of all connections.
function install(Mongo) {
  Object.assign(Mongo.prototype, MODES);
  const { _exchange: exchange } = Mongo.prototype;
  Mongo.prototype._exchange = function (database, command, options = {}) {
    const run = (...parameters) => exchange.apply(this, parameters);
    return withoutWallTimes(run(database, ...translate(database, command, options, run)));
  };
}

module.exports = { install };
