// What lists collections, indexes and databases, and statistics of them.
(function () {
  "use strict";

  const mine = db.getSiblingDB("metadata");
  mine.dropDatabase();
  assert.commandWorked(mine.createCollection("plain"));
  assert.commandWorked(mine.createCollection("expiring", { expireAfterSeconds: 100, timeseries: { timeField: "t" } }));
  assert.commandWorked(mine.plain.insert([{ _id: 1, a: "x".repeat(1000) }, { _id: 2 }]));
  assert.commandWorked(mine.plain.createIndex({ a: 1 }));

  assert.contains("plain", mine.getCollectionNames());
  assert.eq("timeseries", mine.getCollectionInfos({ name: "expiring" })[0].type);
  assert.commandFailedWithCode(mine.createCollection("plain", { capped: true, size: 100 }), ErrorCodes.NamespaceExists);

  const stats = assert.commandWorked(mine.plain.stats());
  assert.eq(2, stats.count);
  assert.eq(2, stats.nindexes);
  assert.gt(stats.size, 1000);
  assert.eq(stats.size, mine.plain.dataSize());
  assert.gt(mine.plain.totalIndexSize(), 0);
  assert.eq("metadata.plain", stats.ns);
  assert(assert.commandWorked(mine.plain.validate()).valid);

  const dbStats = assert.commandWorked(mine.stats());
  assert.gte(dbStats.objects, 2);
  const listed = db.getMongo().getDBs(undefined, { name: "metadata" }).databases;
  assert.eq(
    ["metadata"],
    listed.map((each) => each.name),
  );
  assert.eq(
    ["metadata"],
    db
      .getMongo()
      .getDBs(undefined, { name: /^meta/ }, true)
      .databases.map((each) => each.name),
  );
  assert.contains("find", Object.keys(mine.listCommands().commands));
  assert.eq("isdbgrid", db.hello().msg);
  assert.includes(db.version(), "6.0");
  assert.commandWorked(mine.dropDatabase());
})();
