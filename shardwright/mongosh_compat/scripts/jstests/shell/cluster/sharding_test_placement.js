"use strict";
// Methods of ShardingTest: the placement of databases, chunks and documents.
const { assert } = require("../assert/assert.js");
const { tojson } = require("../tojson.js");

const databaseOf = (namespace) => String(namespace).split(".")[0];

module.exports = {
  getShardNames() {
    return [...this._shardNames];
  },

  // The name of a shard given by its name, address, connection or number.
  normalize(shard) {
    if (typeof shard === "number") return this._shardNames[shard];
    return shard.shardName ?? this._connections.find((each) => each.host === shard)?.shardName ?? shard;
  },

  getConnNames() {
    return this._connections.map((each) => each.host);
  },

  awaitReplicationOnShards() {
    this._rs.forEach((each) => each.test.awaitReplication());
  },

  isMixedVersionCluster() {
    return false;
  },

  // The entry of `_rs` of a replica set.
  getRSEntry(name) {
    const found = this._rs.find((each) => each.setName === name);
    if (found === undefined) throw new Error(`unknown rs: ${name}`);
    return found;
  },

  isSharded(collection) {
    return this.config.collections.findOne({ _id: String(collection) }) !== null;
  },

  getShardByName(name) {
    return this._connections[this._shardNames.indexOf(name)] ?? null;
  },

  getPrimaryShardIdForDatabase(name) {
    const found = this.config.databases.findOne({ _id: name });
    assert(found, `database ${name} is not in config.databases`);
    return found.primary;
  },

  getPrimaryShard(name) {
    return this.getShardByName(this.getPrimaryShardIdForDatabase(name));
  },

  // The connection to the primary shard of a database; the method's name is older than replica sets.
  getServer(name) {
    return this.getPrimaryShard(databaseOf(name));
  },

  getServerName(name) {
    return this.getPrimaryShardIdForDatabase(databaseOf(name));
  },

  ensurePrimaryShard(database, shard) {
    const name = typeof shard === "string" ? shard : shard.shardName;
    const current = this.config.databases.findOne({ _id: database });
    if (current !== null && current.primary === name) return;
    const isEmpty = current === null || this.getDB(database).getCollectionInfos().length === 0;
    if (!isEmpty) return void assert.commandWorked(this.admin.runCommand({ movePrimary: database, to: name }));
    // A database without collections is not moved, but created again on the wanted shard.
    if (current !== null) assert.commandWorked(this.getDB(database).dropDatabase());
    assert.commandWorked(this.admin.runCommand({ enableSharding: database, primaryShard: name }));
  },

  getNonPrimaries(database) {
    const primary = this.getPrimaryShardIdForDatabase(database);
    return this._shardNames.filter((name) => name !== primary);
  },

  // Any other shard than this one.
  getOther(shard) {
    const name = typeof shard === "string" ? shard : shard.shardName;
    return this._connections.find((each) => each.shardName !== name);
  },

  getAnother(shard) {
    const index = this._connections.findIndex((each) => each === shard || each.shardName === shard?.shardName);
    return this._connections[(index + 1) % this._connections.length];
  },

  getFirstOther(shard) {
    return this.getOther(shard);
  },

  // The only shard with documents that match; with `includeEmpty`, the only targeted shard.
  getShard(collection, query, includeEmpty) {
    const shards = this.getShardsForQuery(collection, query, includeEmpty);
    assert.eq(1, shards.length, () => `shards with documents of ${collection} for ${tojson(query)}`);
    return shards[0];
  },

  // The shards with documents that match; with `includeEmpty`, all targeted shards.
  getShardsForQuery(collection, query, includeEmpty) {
    const target = collection.getDB ? collection : this.s.getCollection(collection);
    const { executionStats } = target.find(query).explain("executionStats");
    return (executionStats.executionStages.shards ?? [])
      .filter((each) => includeEmpty || each.executionStages.nReturned > 0)
      .map((each) => this.getShardByName(each.shardName));
  },

  // The number of shards that have documents of a collection.
  onNumShards(database, collection) {
    return this.shardCounts(database, collection).filter((count) => count > 0).length;
  },

  // The number of documents on each shard, in the order of the shards.
  shardCounts(database, collection) {
    return this._connections.map((each) => each.getDB(database).getCollection(collection).count());
  },

  // Check how many documents each shard has, in the order of the shards.
  checkShardCounts(collection, expected) {
    const found = this._connections.map((each) =>
      each.getDB(collection.getDB().getName())[collection.getName()].find().itcount(),
    );
    assert.eq(expected, found, () => `documents of ${collection} on ${this._shardNames}`);
  },

  refreshCatalogCacheForNs(mongos, namespace) {
    mongos.getCollection(namespace).findOne();
  },

  forEachConnection(action) {
    this._connections.forEach((each) => action(each));
  },

  forEachMongos(action) {
    this._mongos.forEach((each) => action(each));
  },

  forEachConfigServer(action) {
    this._configServers.forEach((each) => action(each));
  },
};
