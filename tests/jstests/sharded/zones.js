// Zones: shards in them, ranges of them, and what is refused.
(function () {
  "use strict";

  const config = db.getSiblingDB("config");
  const admin = db.getSiblingDB("admin");
  const [first, second] = config.shards
    .find()
    .sort({ _id: 1 })
    .map((each) => each._id);
  const ns = "zones.orders";
  assert.commandWorked(sh.addShardToZone(first, "east"));
  assert.commandWorked(sh.addShardToZone(second, "west"));
  assert.eq(["east"], config.shards.findOne({ _id: first }).tags);

  assert.commandWorked(db.getSiblingDB("zones").dropDatabase());
  assert.commandWorked(sh.enableSharding("zones", first));
  assert.commandWorked(sh.shardCollection(ns, { region: 1 }));
  sh.updateZoneKeyRange(ns, { region: MinKey }, { region: "m" }, "east");
  sh.updateZoneKeyRange(ns, { region: "m" }, { region: MaxKey }, "west");
  const ranges = config.tags.find({ ns }).sort({ min: 1 }).toArray();
  assert.eq(
    ["east", "west"],
    ranges.map((each) => each.tag),
  );
  assert.eq({ region: "m" }, ranges[0].max);

  const overlapping = { updateZoneKeyRange: ns, min: { region: "a" }, max: { region: "z" }, zone: "east" };
  assert.commandFailedWithCode(admin.runCommand(overlapping), ErrorCodes.RangeOverlapConflict);
  const nowhere = { updateZoneKeyRange: ns, min: { region: "a" }, max: { region: "b" }, zone: "north" };
  assert.commandFailedWithCode(admin.runCommand(nowhere), ErrorCodes.ZoneNotFound);
  assert.commandFailedWithCode(admin.runCommand({ addShardToZone: "nowhere", zone: "east" }), ErrorCodes.ShardNotFound);
  assert.commandFailedWithCode(
    admin.runCommand({ removeShardFromZone: first, zone: "east" }),
    ErrorCodes.ZoneStillInUse,
  );

  sh.removeRangeFromZone(ns, { region: MinKey }, { region: "m" });
  sh.removeRangeFromZone(ns, { region: "m" }, { region: MaxKey });
  assert.eq(0, config.tags.count({ ns }));
  assert.commandWorked(sh.removeShardFromZone(first, "east"));
  assert.commandWorked(sh.removeShardFromZone(second, "west"));
})();
