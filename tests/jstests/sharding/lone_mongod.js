/**
 * A mongod alone, with a suite's own parameters, that is stopped and started on the same data.
 */
(function () {
  "use strict";

  let mongod = MongoRunner.runMongod({ setParameter: { ttlMonitorSleepSecs: 1 } });
  assert.eq(1, mongod.adminCommand({ getParameter: 1, ttlMonitorSleepSecs: 1 }).ttlMonitorSleepSecs);
  assert.eq(undefined, mongod.adminCommand({ hello: 1 }).setName);

  const coll = mongod.getDB("test").expiring;
  assert.commandWorked(coll.createIndex({ at: 1 }, { expireAfterSeconds: 0 }));
  assert.commandWorked(coll.insert([{ _id: "old", at: new Date(0) }, { _id: "kept" }]));
  assert.soon(() => coll.count() === 1, "the TTL monitor deletes what has expired");
  assert.eq("kept", coll.findOne()._id);

  const awaitInsert = startParallelShell(
    () => assert.commandWorked(db.getSiblingDB("test").shell.insert({ _id: 1 })),
    mongod.port,
  );
  awaitInsert();
  assert.eq(1, mongod.getDB("test").shell.count());

  const { dbpath, port } = mongod;
  assert.eq(MongoRunner.EXIT_CLEAN, MongoRunner.stopMongod(mongod));
  assert.throws(() => new Mongo(`127.0.0.1:${port}`));
  mongod = MongoRunner.runMongod({ dbpath, port, noCleanData: true });
  assert.eq("kept", mongod.getDB("test").expiring.findOne()._id);
  MongoRunner.stopMongod(mongod);
})();
