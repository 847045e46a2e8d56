// Properties of the deployment that a suite runs on.
var FixtureHelpers = {
  isMongos: (db) => db.hello().msg === "isdbgrid",
  isSharded: (collection) =>
    collection.getDB().getSiblingDB("config").collections.findOne({ _id: collection.getFullName() }) !== null,
  isReplSet: (db) => db.hello().setName !== undefined,
  isStandalone: (db) => !FixtureHelpers.isMongos(db) && !FixtureHelpers.isReplSet(db),
  numberOfShardsForCollection(collection) {
    const config = collection.getDB().getSiblingDB("config");
    const entry = config.collections.findOne({ _id: collection.getFullName() });
    return entry === null ? 1 : config.chunks.distinct("shard", { uuid: entry.uuid }).length;
  },
  getPrimaryForNodeHostingDatabase: (db) => db.getMongo(),
  getAllReplicas: () => [],
  awaitReplication: () => undefined,
  // The reply to a command from each shard, or from the only server.
  runCommandOnEachPrimary({ db, cmdObj }) {
    if (!FixtureHelpers.isMongos(db)) return [assert.commandWorked(db.runCommand(cmdObj))];
    const shards = db.getSiblingDB("config").shards.find().toArray();
    return shards.map((each) => assert.commandWorked(new Mongo(each.host).getDB(db.getName()).runCommand(cmdObj)));
  },
};
FixtureHelpers.mapOnEachShardNode = ({ db, func }) => {
  const shards = db.getSiblingDB("config").shards.find().toArray();
  return shards.map((each) => func(new Mongo(each.host).getDB(db.getName())));
};
