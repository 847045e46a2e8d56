"use strict";
// Methods of ShardingTest: sharding collections, and their chunks in the catalog.
const { assert } = require("../assert/assert.js");
const { tojson } = require("../tojson.js");
const { chunksOf } = require("./chunk_lookup.js");
const { printShardingStatus } = require("./sharding_status.js");

const namespaceOf = (collection, database) =>
  database === undefined ? String(collection) : `${database}.${collection}`;

module.exports = {
  // Shard a collection by `key`, split it at `split` (false: not at all) and move the chunk of `move` to another shard.
  shardColl(collection, key = { _id: 1 }, split, move, database, waitForDelete = true) {
    const name = collection.getFullName ? collection.getFullName() : namespaceOf(collection, database ?? "test");
    const databaseName = name.split(".")[0];
    if (this.config.databases.findOne({ _id: databaseName }) === null)
      this.adminCommand({ enableSharding: databaseName });
    this.adminCommand({ shardCollection: name, key });
    if (split === false) return;
    const middle = split ?? firstOf(key, 0);
    this.splitAt(name, middle);
    if (move === false) return;
    const other = this.getOther(this.getPrimaryShard(databaseName)).shardName;
    this.adminCommand({ moveChunk: name, find: move ?? middle, to: other, _waitForDelete: waitForDelete });
  },

  shardGo(...parameters) {
    return this.shardColl(...parameters);
  },

  // As `sh.moveChunk`; the shard may also be given by its connection.
  moveChunk(namespace, find, to) {
    return this.admin.runCommand({ moveChunk: namespaceOf(namespace), find, to: to.shardName ?? to });
  },

  moveRange(namespace, min, max, toShard) {
    return this.admin.runCommand({
      moveRange: namespaceOf(namespace),
      min,
      max,
      toShard: toShard.shardName ?? toShard,
    });
  },

  mergeChunks(namespace, bounds) {
    return assert.commandWorked(this.admin.runCommand({ mergeChunks: namespaceOf(namespace), bounds }));
  },

  getChunks(namespace) {
    return chunksOf(this.config, namespaceOf(namespace));
  },

  // The number of chunks of each shard.
  chunkCounts(collection, database = "test") {
    const counts = Object.fromEntries(this._shardNames.map((name) => [name, 0]));
    for (const each of this.getChunks(namespaceOf(collection, database))) counts[each.shard]++;
    return counts;
  },

  chunkDiff(collection, database) {
    const counts = Object.values(this.chunkCounts(collection, database));
    return Math.max(...counts) - Math.min(...counts);
  },

  // Check how many chunks each shard has, in the order of the shards.
  checkChunkCounts(namespace, expected) {
    const found = this._shardNames.map(
      (name) => this.getChunks(namespace).filter((each) => each.shard === name).length,
    );
    assert.eq(expected, found, () => `chunks of ${namespace} on ${this._shardNames}`);
  },

  // A line for each chunk, of all collections if none is named.
  getChunksString(namespace) {
    const filter = namespace ? { _id: String(namespace) } : {};
    const names = this.config.collections.find(filter).sort({ _id: 1 }).toArray();
    const lineOf = (name, { _id, lastmod, min, max, shard }) =>
      `  ${_id}\t${lastmod.t}|${lastmod.i}\t${tojson(min)} -> ${tojson(max)} ${shard}  ${name}\n`;
    return names.flatMap(({ _id: name }) => this.getChunks(name).map((each) => lineOf(name, each))).join("");
  },

  printChunks(namespace) {
    host.write(`${this.getChunksString(namespace)}\n`);
  },

  printChangeLog() {
    this.config.changelog
      .find()
      .sort({ time: 1 })
      .forEach((each) => host.write(`${tojson(each, "", true)}\n`));
  },

  printShardingStatus(isVerbose) {
    printShardingStatus(this.config, isVerbose);
  },

  printCollectionInfo(namespace, message = "") {
    host.write(`${message}\n${tojson(this.config.collections.findOne({ _id: namespace }))}\n`);
    this.printChunks(namespace);
  },

  printNodes() {
    for (const each of this._cluster?.processes ?? []) host.write(`${each.name} ${each.address}\n`);
  },
};

const firstOf = (key, value) => Object.fromEntries(Object.keys(key).map((name) => [name, value]));
