// DDL operations by the helpers and commands that an operator types, and the output of sh.status() afterwards.
const test = db.getSiblingDB("mongosh_reshaping");
const config = db.getSiblingDB("config");
const name = (collection) => `${test.getName()}.${collection}`;
test.dropDatabase();

const [first, second] = sh.listShards({}).map((shard) => shard._id).sort();
sh.enableSharding(test.getName(), first);
sh.shardCollection(name("orders"), { customer: 1 });
sh.splitAt(name("orders"), { customer: 50 });
sh.moveChunk(name("orders"), { customer: 50 }, second);
const orders = test.orders;
orders.insertMany(Array.from({ length: 100 }, (_, n) => ({ _id: n, customer: n, item: n % 7 })));
test.notes.insertMany([{ _id: 1 }, { _id: 2 }]);

const entry = (collection) => config.collections.findOne({ _id: name(collection) });
const owners = (collection) => config.chunks.distinct("shard", { uuid: entry(collection).uuid }).sort();

// Another primary shard for unsharded collections
assert.eq(db.adminCommand({ movePrimary: test.getName(), to: second }).ok, 1, "movePrimary");
assert.eq(config.databases.findOne({ _id: test.getName() }).primary, second, "the primary shard");
assert.eq(test.notes.countDocuments(), 2, "documents have moved");
assert.failsWith(() => assert.eq(db.adminCommand({ movePrimary: test.getName(), to: "none" }).ok, 1), 70);

// A longer shard key
orders.createIndex({ customer: 1, item: 1 });
const refined = { customer: 1, item: 1 };
assert.eq(db.adminCommand({ refineCollectionShardKey: name("orders"), key: refined }).ok, 1, "refineCollectionShardKey");
assert.eq(entry("orders").key, refined, "the refined key");
assert.failsWith(() => db.adminCommand({ refineCollectionShardKey: name("orders"), key: { item: 1 } }), 72);

// Renames of a sharded and an unsharded collection, also over existing ones
assert.eq(orders.renameCollection("sales").ok, 1, "renameCollection of a sharded collection");
assert.eq(test.sales.countDocuments(), 100, "documents under the new name");
assert.eq([entry("orders"), owners("sales")], [null, [first, second]], "the catalog after the rename");
assert.eq(test.notes.renameCollection("remarks").ok, 1, "renameCollection of an unsharded collection");
test.notes.insertOne({ _id: 3 });
assert.failsWith(() => test.notes.renameCollection("remarks"), 48);
assert.eq(test.notes.renameCollection("remarks", true).ok, 1, "renameCollection with dropTarget");
assert.eq(test.remarks.find().toArray(), [{ _id: 3 }], "the target was replaced");

// Another shard key
assert.eq(sh.reshardCollection(name("sales"), { item: "hashed" }, { numInitialChunks: 4 }).ok, 1, "reshardCollection");
assert.eq(entry("sales").key, { item: "hashed" }, "the new key");
assert.eq(test.sales.distinct("customer").length, 100, "nothing is lost");
assert.failsWith(() => sh.abortReshardCollection(name("sales")), 339);

// Status and settings of the whole cluster
const mode = sh.getBalancerState();
sh.stopBalancer(10000);
assert.eq(sh.getBalancerState(), false, "getBalancerState");
sh.disableAutoSplit();
const [shown] = sh.status(true).value.databases.filter(({ database }) => database._id === test.getName());
assert.eq(shown.database.primary, second, "sh.status: the primary shard");
assert.eq(Object.keys(shown.collections), [name("sales")], "sh.status: collections");
assert.eq(shown.collections[name("sales")].shardKey, { item: "hashed" }, "sh.status: the key");
sh.enableAutoSplit();
if (mode) sh.startBalancer(10000);
assert.eq(sh.getBalancerState(), mode, "the balancer is as it was");
config.settings.deleteOne({ _id: "autosplit" });

test.dropDatabase();
assert.eq(config.collections.countDocuments({ _id: { $regex: `^${test.getName()}` } }), 0, "nothing is left");
