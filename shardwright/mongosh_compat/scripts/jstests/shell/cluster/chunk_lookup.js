"use strict";
// Chunks in the catalog.
const { assert } = require("../assert/assert.js");
const { bsonWoCompare } = require("../bson_order.js");
const { hashedKeyValue } = require("./hashed_key.js");

const collectionEntry = (config, namespace) => config.collections.findOne({ _id: namespace });

// The chunks of a collection, in the order of their bounds.
function chunksOf(config, namespace, filter = {}) {
  const entry = collectionEntry(config, namespace);
  return entry === null
    ? []
    : config.chunks
        .find({ uuid: entry.uuid, ...filter })
        .sort({ min: 1 })
        .toArray();
}

const valueAt = (document, path) => path.split(".").reduce((inner, name) => inner?.[name], document);

// The shard key of a document, or of a document with the fields of the key themselves.
function shardKeyOf(config, entry, document) {
  const fields = Object.entries(entry.key).map(([path, kind]) => {
    const value = (path in document ? document[path] : valueAt(document, path)) ?? null;
    return [path, kind === "hashed" ? hashedKeyValue(config.getMongo(), value) : value];
  });
  return Object.fromEntries(fields);
}

function chunkOf(config, namespace, document) {
  const entry = collectionEntry(config, namespace);
  assert(entry, `${namespace} is not sharded`);
  const key = shardKeyOf(config, entry, document);
  return chunksOf(config, namespace).find(
    (each) => bsonWoCompare(each.min, key) <= 0 && bsonWoCompare(key, each.max) < 0,
  );
}

module.exports = { chunkOf, chunksOf };
