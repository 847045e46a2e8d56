// Every helper of `sh` that MongoDB 6.0 has commands for.
const namespace = "mongosh_helpers_sh.events";
const test = db.getSiblingDB("mongosh_helpers_sh");
const config = db.getSiblingDB("config");
test.dropDatabase();

// Shards and zones
const shards = sh.listShards({}).map((shard) => shard._id).sort();
const host = config.shards.findOne({ _id: shards[0] }).host;
assert.eq(sh.addShard(host).shardAdded, shards[0], "addShard");
const zones = (shard) => config.shards.findOne({ _id: shard }).tags || [];
for (const [add, remove] of [["addShardTag", "removeShardTag"], ["addShardToZone", "removeShardFromZone"]]) {
  assert.eq(sh[add](shards[1], "helpers").ok, 1, add);
  assert(zones(shards[1]).includes("helpers"), `${add} shows`);
  assert.eq(sh[remove](shards[1], "helpers").ok, 1, remove);
  assert(!zones(shards[1]).includes("helpers"), `${remove} shows`);
}

// Collections and chunks
assert.eq(sh.enableSharding("mongosh_helpers_sh", shards[0]).ok, 1, "enableSharding");
assert.eq(sh.shardCollection(namespace, { place: 1 }).collectionsharded, namespace, "shardCollection");
test.events.insertMany(Array.from({ length: 40 }, (_, place) => ({ place })));
const entry = () => config.collections.findOne({ _id: namespace });
const chunks = () => config.chunks.find({ uuid: entry().uuid }).sort({ min: 1 }).toArray();
const distribution = sh.getShardedDataDistribution().toArray().filter((each) => each.ns === namespace);
assert.eq(distribution.length, 1, "getShardedDataDistribution");
assert.eq(sh.splitAt(namespace, { place: 20 }).ok, 1, "splitAt");
assert.eq(sh.splitFind(namespace, { place: 30 }).ok, 1, "splitFind");
assert.eq(chunks().length, 3, "chunks after both");
assert.eq(sh.moveChunk(namespace, { place: 39 }, shards[1]).ok, 1, "moveChunk");
assert.eq(sh.moveRange(namespace, shards[1], { place: 3 }, { place: 5 }).ok, 1, "moveRange");
assert.eq(chunks().map((chunk) => chunk.shard), [0, 1, 0, 0, 1].map((n) => shards[n]), "chunks after moves");
assert.eq(sh.balancerCollectionStatus(namespace).balancerCompliant, true, "balancerCollectionStatus");

// Ranges of zones
sh.addShardToZone(shards[0], "helpers");
const ranges = () => config.tags.find({ ns: namespace }).sort({ min: 1 }).toArray();
assert.eq(sh.updateZoneKeyRange(namespace, { place: 5 }, { place: 10 }, "helpers").ok, 1, "updateZoneKeyRange");
assert.eq(sh.addTagRange(namespace, { place: 10 }, { place: 15 }, "helpers").ok, 1, "addTagRange");
assert.eq(ranges().map((range) => [range.min.place, range.tag]), [[5, "helpers"], [10, "helpers"]], "config.tags");
assert.eq(sh.removeRangeFromZone(namespace, { place: 5 }, { place: 10 }).ok, 1, "removeRangeFromZone");
assert.eq(sh.removeTagRange(namespace, { place: 10 }, { place: 15 }).ok, 1, "removeTagRange");
assert.eq(ranges(), [], "no ranges are left");
sh.removeShardFromZone(shards[0], "helpers");

// Switches of the cluster, put back at the end
const mode = db.adminCommand({ balancerStatus: 1 }).mode;
const before = config.settings.find({ _id: { $in: ["automerge", "autosplit"] } }).toArray();
assert.eq(sh.setBalancerState(true).ok, 1, "setBalancerState");
assert.eq(sh.getBalancerState(), true, "getBalancerState");
assert.eq(sh.stopBalancer(10000).ok, 1, "stopBalancer");
assert.eq(sh.getBalancerState(), false, "after stopBalancer");
assert.eq(sh.startBalancer(10000).ok, 1, "startBalancer");
assert.eq(sh.isBalancerRunning().mode, "full", "isBalancerRunning");
sh.setBalancerState(mode === "full");
sh.disableAutoSplit();
assert.eq(config.settings.findOne({ _id: "autosplit" }).enabled, false, "disableAutoSplit");
sh.enableAutoSplit();
assert.eq(config.settings.findOne({ _id: "autosplit" }).enabled, true, "enableAutoSplit");
sh.stopAutoMerger();
assert.eq(sh.isAutoMergerEnabled(), false, "stopAutoMerger");
sh.startAutoMerger();
assert.eq(sh.isAutoMergerEnabled(), true, "startAutoMerger");
config.settings.deleteMany({ _id: { $in: ["automerge", "autosplit"] } });
if (before.length > 0) config.settings.insertMany(before);

// Switches of one collection
sh.disableBalancing(namespace);
assert.eq(entry().noBalance, true, "disableBalancing");
sh.enableBalancing(namespace);
assert.eq(entry().noBalance, false, "enableBalancing");
sh.disableAutoMerger(namespace);
assert.eq(entry().enableAutoMerge, false, "disableAutoMerger");
sh.enableAutoMerger(namespace);
assert(entry().enableAutoMerge !== false, "enableAutoMerger");
assert.eq(sh.disableMigrations(namespace).ok, 1, "disableMigrations");
assert.failsWith(() => sh.moveChunk(namespace, { place: 25 }, shards[1]), 117);
assert.eq(sh.enableMigrations(namespace).ok, 1, "enableMigrations");

// Another shard key
assert.eq(sh.reshardCollection(namespace, { seats: 1 }, { numInitialChunks: 1 }).ok, 1, "reshardCollection");
assert.eq([entry().key, chunks().length], [{ seats: 1 }, 1], "the collection after reshardCollection");
assert.eq(test.events.countDocuments(), 40, "documents after reshardCollection");
assert.failsWith(() => sh.abortReshardCollection(namespace), 339);
assert.failsWith(() => sh.commitReshardCollection(namespace), 339);

// Output
assert.eq(sh.isConfigShardEnabled().enabled, false, "isConfigShardEnabled");
const status = sh.status().value;
assert.eq(status.shards.map((shard) => shard._id).sort(), shards, "status: shards");
assert(status.databases.some(({ database }) => database._id === test.getName()), "status: databases");
assert(sh.help().attr.length > 10, "help");

test.dropDatabase();
