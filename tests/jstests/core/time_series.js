// Time-series collections on one shard.
(function () {
  "use strict";

  const coll = db.time_series;
  coll.drop();
  assert.commandWorked(db.createCollection(coll.getName(), { timeseries: { timeField: "at", metaField: "sensor" } }));
  const start = ISODate("2022-01-01T00:00:00Z").getTime();
  const documents = [];
  for (let i = 0; i < 60; i++) documents.push({ at: new Date(start + i * 60000), sensor: i % 2, value: i });
  assert.commandWorked(coll.insert(documents));

  assert.eq(60, coll.count());
  assert.eq(30, coll.find({ sensor: 1 }).itcount());
  assert.eq(10, coll.find({ at: { $gte: new Date(start + 50 * 60000) } }).itcount());
  const means = coll
    .aggregate([{ $group: { _id: "$sensor", mean: { $avg: "$value" } } }, { $sort: { _id: 1 } }])
    .toArray();
  assert.eq(
    [29, 30],
    means.map((each) => each.mean),
  );
  assert.writeErrorWithCode(coll.insert({ sensor: 1, value: 1 }), ErrorCodes.BadValue);
  assert(coll.drop());
})();
