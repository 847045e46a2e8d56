"use strict";
// Aggregations and change streams, on a collection or (with the name 1) on a database.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { DBCommandCursor } = require("./command_cursor.js");

// `parameters`: a pipeline and options, or the stages one by one.
function aggregateOn(db, name, parameters) {
  const [pipeline, options] = Array.isArray(parameters[0]) ? [parameters[0], parameters[1] ?? {}] : [parameters, {}];
  const command = commandOf(name, pipeline, options);
  const { reply, hostAndPort } = db._run(command);
  if (reply.ok !== 1) throw _getErrorWithCode(reply, `aggregate failed: ${tojson(reply)}`);
  if (!("cursor" in reply)) return reply;
  return new DBCommandCursor(db, reply, command.cursor?.batchSize, options.maxAwaitTimeMS, undefined, hostAndPort);
}

function commandOf(name, pipeline, options) {
  const { batchSize, useCursor, maxAwaitTimeMS, ...rest } = options;
  const command = { aggregate: name, pipeline, ...rest };
  if (!("cursor" in command) && !("explain" in command)) command.cursor = batchSize === undefined ? {} : { batchSize };
  return command;
}

const STREAM_OPTIONS = [
  "fullDocument",
  "fullDocumentBeforeChange",
  "resumeAfter",
  "startAfter",
  "startAtOperationTime",
  "showExpandedEvents",
  "allChangesForCluster",
];

function watchOn(db, name, pipeline, options) {
  const entries = Object.entries(options);
  const stream = Object.fromEntries(entries.filter(([option]) => STREAM_OPTIONS.includes(option)));
  const rest = Object.fromEntries(entries.filter(([option]) => !STREAM_OPTIONS.includes(option)));
  return aggregateOn(db, name, [[{ $changeStream: stream }, ...[pipeline].flat()], rest]);
}

module.exports = { aggregateOn, watchOn };
