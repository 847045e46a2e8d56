"use strict";
// Methods of ShardingTest: which shard has what.
const { assert } = require("../assert/assert.js");

const databaseOf = (namespace) => String(namespace).split(".")[0];

module.exports = {
  getShardNames() {
    return [...this._shardNames];
  },

  // The name of a shard given by its name, connection or number.
  normalize(shard) {
    return typeof shard === "number" ? this._shardNames[shard] : (shard.shardName ?? shard);
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

  // The connection to the primary shard of a database; the name is that of the time before replica sets.
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
    // Nothing has to be moved: a database without collections is created again where it is wanted.
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

  // The shard that has the chunk of a document or shard key.
  getShard(namespace, document) {
    const { chunkOf } = require("./chunk_lookup.js");
    return this.getShardByName(chunkOf(this.config, String(namespace), document).shard);
  },

  getShardsForQuery(collection, query) {
    const plan = collection.find(query).explain().queryPlanner.winningPlan;
    return (plan.shards ?? []).map((each) => this.getShardByName(each.shardName));
  },

  // The number of shards that have documents of a collection.
  onNumShards(collection, database) {
    const target = typeof collection === "string" ? this.getDB(database ?? "test")[collection] : collection;
    return this._connections.filter((each) => each.getDB(target.getDB().getName())[target.getName()].findOne() !== null)
      .length;
  },

  shardCounts(collection, database = "test") {
    const counts = {};
    for (const each of this._connections) counts[each.shardName] = each.getDB(database)[collection].find().itcount();
    return counts;
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
