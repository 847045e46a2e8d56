"use strict";
// Sizes of a collection, and the distribution of its documents.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");

const configOf = (collection) => collection.getDB().getSiblingDB("config");

module.exports = {
  // `indexDetailsName` or `indexDetailsKey` selects one of the indexes in `indexDetails`.
  stats(options) {
    const given = typeof options === "object" && options !== null ? options : { scale: options };
    const { scale, indexDetails, indexDetailsKey, indexDetailsName, ...rest } = given;
    if (indexDetailsKey && indexDetailsName)
      throw new Error("Cannot filter indexDetails on both indexDetailsKey and indexDetailsName");
    const reply = this.runCommand({ collStats: this._shortName, ...(scale === undefined ? {} : { scale }), ...rest });
    const shown = indexDetailsName ?? (indexDetailsKey && this.getIndexByKey(indexDetailsKey)?.name);
    for (const each of [reply, ...Object.values(reply.shards ?? {})]) chooseDetails(each, indexDetails, shown);
    return reply;
  },

  dataSize() {
    return this.stats().size;
  },

  storageSize() {
    return this.stats().storageSize;
  },

  totalIndexSize() {
    return this.stats().totalIndexSize;
  },

  totalSize() {
    const { storageSize, totalIndexSize } = this.stats();
    return storageSize + totalIndexSize;
  },

  latencyStats(options) {
    return this.aggregate([{ $collStats: { latencyStats: options ?? {} } }]);
  },

  getShardVersion() {
    return this._db.adminCommand({ getShardVersion: this._fullName });
  },

  // The bounds between its chunks.
  getSplitKeysForChunks(chunkSize) {
    const stats = this.stats();
    if (!stats.sharded) throw new Error(`Collection ${this._fullName} is not sharded`);
    const { key } = configOf(this).collections.findOne({ _id: this._fullName });
    const reply = this._db.adminCommand({ splitVector: this._fullName, keyPattern: key, maxChunkSizeBytes: chunkSize });
    if (reply.ok !== 1) throw _getErrorWithCode(reply, `splitVector failed: ${tojson(reply)}`);
    return reply.splitKeys;
  },

  getShardDistribution() {
    const stats = this.stats();
    if (!stats.sharded) return void host.write(`Collection ${this._fullName} is not sharded.\n`);
    for (const [shard, each] of Object.entries(stats.shards)) {
      host.write(`\nShard ${shard}\n data : ${each.size} docs : ${each.count}\n`);
    }
    host.write(`\nTotals\n data : ${stats.size} docs : ${stats.count}\n`);
  },
};

function chooseDetails(stats, isWanted, name) {
  if (!isWanted) delete stats.indexDetails;
  else if (name && stats.indexDetails) stats.indexDetails = { [name]: stats.indexDetails[name] };
}
