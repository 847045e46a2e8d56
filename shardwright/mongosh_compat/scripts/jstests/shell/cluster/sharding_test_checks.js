"use strict";
// Methods of ShardingTest: checks that catalog, shards and data agree.
const { assert } = require("../assert/assert.js");
const { bsonWoCompare } = require("../bson_order.js");
const { tojson } = require("../tojson.js");
const { chunksOf } = require("./chunk_lookup.js");

const RANGE_DELETION_TIMEOUT_MS = 60_000;

module.exports = {
  // The chunks of each collection follow each other without a gap.
  checkRoutingTableConsistency() {
    this.config.collections.find({ dropped: { $ne: true } }).forEach(({ _id: name }) => {
      const chunks = chunksOf(this.config, name);
      assert.gt(chunks.length, 0, `${name} has no chunks`);
      for (let index = 1; index < chunks.length; index++) {
        assert.eq(
          0,
          bsonWoCompare(chunks[index - 1].max, chunks[index].min),
          `${name}: ${tojson(chunks[index])} does not follow`,
        );
      }
    });
  },

  // A sharded collection has the catalog's UUID on each shard that has it.
  checkUUIDsConsistentAcrossCluster() {
    this.config.collections.find({ unsplittable: { $ne: true } }).forEach(({ _id: name, uuid }) => {
      const [database, ...rest] = name.split(".");
      if (database === "config") return;
      for (const each of this._connections) {
        const [info] = each.getDB(database).getCollectionInfos({ name: rest.join(".") });
        if (info !== undefined) assert.eq(uuid.hex(), info.info.uuid.hex(), `${name} on ${each.shardName}`);
      }
    });
  },

  checkIndexesConsistentAcrossCluster(database) {
    const names = this.config.collections
      .find(database ? { _id: new RegExp(`^${RegExp.escape(database)}\\.`) } : {})
      .toArray();
    for (const { _id: name } of names.filter((each) => !each._id.startsWith("config."))) {
      const [databaseName, ...rest] = name.split(".");
      const owners = this._shardNames.filter((shard) => chunksOf(this.config, name, { shard }).length > 0);
      const lists = owners.map((shard) => this.getShardByName(shard).getDB(databaseName)[rest.join(".")].getIndexes());
      for (const list of lists.slice(1)) assert.sameMembers(lists[0], list, `indexes of ${name}`);
    }
  },

  // Wait until no shard has a range left to delete.
  checkOrphansAreDeleted() {
    for (const each of this._connections) {
      const deletions = each.getDB("config").rangeDeletions;
      assert.soon(
        () => deletions.find({ pending: { $ne: true } }).itcount() === 0,
        `ranges to delete on ${each.shardName}`,
        RANGE_DELETION_TIMEOUT_MS,
      );
    }
  },
};
