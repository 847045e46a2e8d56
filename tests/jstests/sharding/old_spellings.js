/**
 * What the oldest suites write: other.chunkSize, commands in lower case, shards by their connection strings.
 */
(function () {
  "use strict";

  const s = new ShardingTest({ name: "old_spellings", shards: 2, mongos: 1, other: { chunkSize: 1 } });
  const db = s.s0.getDB("old");
  assert.commandWorked(s.s0.adminCommand({ enablesharding: "old" }));
  s.ensurePrimaryShard("old", s.shard1.shardName);
  assert.commandWorked(s.s0.adminCommand({ shardcollection: "old.foo", key: { num: 1 } }));
  assert.commandWorked(s.s0.adminCommand({ split: "old.foo", middle: { num: 10 } }));
  assert.commandWorked(
    s.s0.adminCommand({ movechunk: "old.foo", find: { num: 20 }, to: s.getOther(s.getPrimaryShard("old")).name }),
  );
  assert.eq(1, s.config.settings.findOne({ _id: "chunksize" }).value);

  assert.writeOK(db.foo.save({ num: 5 }));
  assert.writeOK(db.foo.save({ num: 15 }));
  for (const each of [s.rs0, s.rs1]) {
    assert.eq(1, each.getPrimary().getDB("old").foo.count());
    assert.eq(2, each.getPrimary().getDB("old").foo.getIndexKeys().length);
  }
  assert.eq(2, db.foo.find().length());
  assert.eq(15, db.foo.find().sort({ num: -1 })[0].num);
  assert.eq([1, 1], s.shardCounts("old", "foo"));
  assert.eq(0, s.chunkDiff("foo", "old"));
  assert.eq(s.shard0.shardName, s.normalize(0));

  assert.eq(["6.0", "5.0", "4.4"], ["latest", "last-lts", "4.4"].map(MongoRunner.getBinVersionFor));
  assert(MongoRunner.areBinVersionsTheSame("6.0.5", "latest"));
  assert(!MongoRunner.areBinVersionsTheSame("last-lts", "latest"));
  assert.commandWorked(s.s0.adminCommand({ flushRouterConfig: 1 }));
  s.stop();
})();
