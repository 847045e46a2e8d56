"use strict";
// `sh` and `rs`: the helpers for sharding and replica sets, on the global `db`.
const { assert } = require("./assert/assert.js");
const { printShardingStatus } = require("./cluster/sharding_status.js");

const admin = () => globalThis.db.getSiblingDB("admin");
const config = () => globalThis.db.getSiblingDB("config");
const run = (command) => admin().runCommand(command);
const checked = (command) => assert.commandWorked(run(command));

const sh = {
  _adminCommand: run,
  addShard: (url) => run({ addShard: url }),
  enableSharding: (database, primaryShard) =>
    run({ enableSharding: database, ...(primaryShard ? { primaryShard } : {}) }),
  shardCollection: (name, key, unique, options) =>
    run({ shardCollection: name, key, ...(unique ? { unique } : {}), ...options }),
  splitAt: (name, middle) => run({ split: name, middle }),
  splitFind: (name, find) => run({ split: name, find }),
  moveChunk: (name, find, to) => run({ moveChunk: name, find, to }),
  moveRange: (name, toShard, min, max) => run({ moveRange: name, toShard, min, max }),
  status: (isVerbose) => printShardingStatus(config(), isVerbose),
  addShardToZone: (addShardToZone, zone) => checked({ addShardToZone, zone }),
  removeShardFromZone: (removeShardFromZone, zone) => checked({ removeShardFromZone, zone }),
  updateZoneKeyRange: (name, min, max, zone) => checked({ updateZoneKeyRange: name, min, max, zone }),
  removeRangeFromZone: (name, min, max) => checked({ updateZoneKeyRange: name, min, max, zone: null }),
  getBalancerState: () => run({ balancerStatus: 1 }).mode !== "off",
  isBalancerRunning: () => checked({ balancerStatus: 1 }),
  startBalancer: (maxTimeMS = 60_000) => checked({ balancerStart: 1, maxTimeMS }),
  stopBalancer: (maxTimeMS = 60_000) => checked({ balancerStop: 1, maxTimeMS }),
  setBalancerState: (isOn) => (isOn ? sh.startBalancer() : sh.stopBalancer()),
  enableBalancing: (collection) =>
    assert.commandWorked(config().collections.update({ _id: String(collection) }, { $set: { noBalance: false } })),
  disableBalancing: (collection) =>
    assert.commandWorked(config().collections.update({ _id: String(collection) }, { $set: { noBalance: true } })),
};
Object.assign(sh, { addShardTag: sh.addShardToZone, removeShardTag: sh.removeShardFromZone });
Object.assign(sh, { addTagRange: sh.updateZoneKeyRange, removeTagRange: sh.removeRangeFromZone });

const rs = {
  status: () => run({ replSetGetStatus: 1 }),
  conf: () => checked({ replSetGetConfig: 1 }).config,
  isMaster: () => globalThis.db.isMaster(),
  hello: () => globalThis.db.hello(),
  stepDown: (seconds = 60) => run({ replSetStepDown: seconds }),
  freeze: (seconds) => run({ replSetFreeze: seconds }),
  secondaryOk: (value = true) => globalThis.db.getMongo().setSecondaryOk(value),
};
Object.assign(rs, { config: rs.conf, slaveOk: rs.secondaryOk });

module.exports = { rs, sh };
