"use strict";
// The hash of a shard key value, as a hashed index stores it.
const { assert } = require("../assert/assert.js");
const { Mongo } = require("../connection/mongo.js");

// Any server can tell; the newest connection is the most likely to be open.
function hashedKeyValue(value) {
  const connection = [...Mongo.open].at(-1);
  assert(connection, "convertShardKeyToHashed needs a connection");
  const pipeline = [{ $documents: [{}] }, { $project: { hashed: { $toHashedIndexKey: { $literal: value } } } }];
  return connection.getDB("admin").aggregate(pipeline).toArray()[0].hashed;
}

module.exports = { hashedKeyValue };
