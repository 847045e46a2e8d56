"use strict";
// The hash of a shard key value, as a hashed index stores it.

// Any server will do for `connection`.
function hashedKeyValue(connection, value) {
  const pipeline = [{ $documents: [{}] }, { $project: { hashed: { $toHashedIndexKey: { $literal: value } } } }];
  return connection.getDB("admin").aggregate(pipeline).toArray()[0].hashed;
}

module.exports = { hashedKeyValue };
