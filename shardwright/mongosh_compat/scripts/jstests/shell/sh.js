"use strict";
// `sh` and `rs`: helpers for sharding and replica sets, on the global `db`. A ShardingTest has the helpers of `sh` too.
const { timestampCmp } = require("./bson_order.js");
const { assert } = require("./assert/assert.js");
const { printShardingStatus } = require("./cluster/sharding_status.js");
const { tojson } = require("./tojson.js");

const TIMEOUT_MS = 60_000;
const DAY_MS = 24 * 60 * 60 * 1000;
const ROUNDS_BEFORE_COMPLIANCE = 3;
const MAJORITY = { writeConcern: { w: "majority", wtimeout: TIMEOUT_MS } };

// The helpers for the cluster of a database; `current` returns that database.
function helpersOf(current) {
  const admin = () => current().getSiblingDB("admin");
  const config = () => current().getSiblingDB("config");
  const run = (command) => admin().runCommand(command);
  const statusOf = (database) => assert.commandWorked(database.adminCommand({ balancerStatus: 1 }));
  // A collection belongs to a cluster of its own.
  const configOf = (collection) => (collection.getDB ? collection.getDB().getSiblingDB("config") : config());
  const set = (database, id, value) =>
    assert.commandWorked(database.settings.update({ _id: id }, { $set: value }, { upsert: true, ...MAJORITY }));

  function setBalancing(collection, noBalance) {
    if (collection === undefined) throw new Error("Must specify collection");
    const entries = configOf(collection).collections;
    return assert.commandWorked(entries.update({ _id: String(collection) }, { $set: { noBalance } }, MAJORITY));
  }

  const helpers = {
    _adminCommand: run,
    _getConfigDB: config,
    _getBalancerStatus: () => statusOf(config()),
    _dataFormat: dataFormat,
    _pchunk: (chunk) => `[${tojson(chunk.min)} -> ${tojson(chunk.max)}]`,

    _checkMongos() {
      if (current().hello().msg !== "isdbgrid") throw new Error("not connected to a mongos");
    },

    _checkFullName(name) {
      assert(name, "need a full name");
      assert(name.indexOf(".") > 0, "name needs to be fully qualified <db>.<collection>'");
    },

    status: (isVerbose, database) => printShardingStatus(database ?? config(), isVerbose),
    addShard: (url) => run({ addShard: url }),

    enableSharding(database, primaryShard) {
      assert(database, "need a valid dbname");
      return run({ enableSharding: database, ...(primaryShard ? { primaryShard } : {}) });
    },

    shardCollection(name, key, unique, options) {
      helpers._checkFullName(name);
      assert(key, "need a key");
      assert(typeof key === "object", "key needs to be an object");
      if (options && typeof options !== "object") throw new Error("options must be an object");
      return run({ shardCollection: name, key, ...(unique ? { unique: true } : {}), ...options });
    },

    splitAt(name, middle) {
      helpers._checkFullName(name);
      return run({ split: name, middle });
    },

    splitFind(name, find) {
      helpers._checkFullName(name);
      return run({ split: name, find });
    },

    moveChunk(name, find, to) {
      helpers._checkFullName(name);
      return run({ moveChunk: name, find, to });
    },

    moveRange(name, toShard, min, max) {
      helpers._checkFullName(name);
      return run({ moveRange: name, toShard, ...(min ? { min } : {}), ...(max ? { max } : {}) });
    },

    reshardCollection: (name, key, unique, options) =>
      run({ reshardCollection: name, key, ...(unique ? { unique: true } : {}), ...options }),
    abortReshardCollection: (name) => run({ abortReshardCollection: name }),
    commitReshardCollection: (name) => run({ commitReshardCollection: name }),

    addShardToZone: (addShardToZone, zone) => run({ addShardToZone, zone }),
    removeShardFromZone: (removeShardFromZone, zone) => run({ removeShardFromZone, zone }),
    updateZoneKeyRange: (name, min, max, zone) => run({ updateZoneKeyRange: name, min, max, zone }),
    removeRangeFromZone: (name, min, max) => run({ updateZoneKeyRange: name, min, max, zone: null }),

    startBalancer: (timeout) => assert.commandWorked(run({ balancerStart: 1, maxTimeMS: timeout || TIMEOUT_MS })),
    stopBalancer: (timeout) => assert.commandWorked(run({ balancerStop: 1, maxTimeMS: timeout || TIMEOUT_MS })),

    setBalancerState(isOn) {
      assert(typeof isOn === "boolean", "Must pass boolean to setBalancerState");
      return isOn ? helpers.startBalancer() : helpers.stopBalancer();
    },

    getBalancerState(database = config(), status = statusOf(database)) {
      return status.mode !== "off" && status.mode !== "autoSplitOnly";
    },

    isBalancerRunning: (database = config()) => statusOf(database).inBalancerRound,
    getBalancerWindow: (database = config()) => database.settings.findOne({ _id: "balancer" })?.activeWindow ?? null,
    _writeBalancerStateDeprecated: (isOn) => set(config(), "balancer", { stopped: !isOn }),

    // Wait until the balancer has made a round; a new config primary counts them from 0.
    awaitBalancerRound(timeout, interval) {
      let initial = helpers._getBalancerStatus();
      let status;
      const isLater = () => {
        status = helpers._getBalancerStatus();
        assert.eq("full", status.mode, "Balancer is disabled");
        if (tojson(status.term) !== tojson(initial.term)) {
          initial = status;
          return false;
        }
        return status.numBalancerRounds > initial.numBalancerRounds;
      };
      assert.soon(isLater, () => `Latest balancer status: ${tojson(status)}`, timeout || TIMEOUT_MS, interval);
    },

    enableBalancing: (collection) => setBalancing(collection, false),
    disableBalancing: (collection) => setBalancing(collection, true),
    balancerCollectionStatus: (name) => run({ balancerCollectionStatus: String(name) }),
    configureCollectionBalancing: (name, options) => run({ configureCollectionBalancing: String(name), ...options }),

    // Wait until a collection is balanced, and its shards have deleted their orphans.
    awaitCollectionBalance(collection, timeout, interval) {
      if (collection === undefined) throw new Error("Must specify collection");
      const limits = [timeout || TIMEOUT_MS, interval];
      const isCompliant = () =>
        assert.commandWorked(helpers.balancerCollectionStatus(collection.getFullName())).balancerCompliant;
      const orphans = () =>
        collection
          .aggregate([{ $collStats: { storageStats: {} } }])
          .toArray()
          .reduce((sum, each) => sum + Number(each.storageStats.numOrphanDocs ?? 0), 0);
      const isBalanced = () => {
        assert.soon(isCompliant, "Timed out waiting for the collection to be balanced", ...limits);
        helpers.disableBalancing(collection);
        assert.soon(() => orphans() === 0, "Timed out waiting for orphans counter to be 0", ...limits);
        helpers.enableBalancing(collection);
        // The status says "compliant" before the balancer has seen all changes.
        for (let round = 0; round < ROUNDS_BEFORE_COMPLIANCE; round++) helpers.awaitBalancerRound(...limits);
        return isCompliant();
      };
      assert.soon(isBalanced, "Timed out waiting for collection to be balanced and orphans counter to be 0", ...limits);
    },

    // Check that the sizes of a collection on its shards differ by no more than three chunks.
    verifyCollectionIsBalanced(collection) {
      if (collection === undefined) throw new Error("Must specify collection");
      const status = assert.commandWorked(helpers.balancerCollectionStatus(collection.getFullName()));
      const statistics = collection.aggregate([{ $collStats: { storageStats: {} } }]).toArray();
      const sizes = statistics.map(
        ({ storageStats: { count, numOrphanDocs = 0, avgObjSize = 0 } }) =>
          (Number(count) - Number(numOrphanDocs)) * Number(avgObjSize),
      );
      assert.lte(
        Math.max(...sizes) - Math.min(...sizes),
        3 * 1024 * 1024 * Number(status.chunkSize),
        `Collection not balanced. collection= ${collection}, collSizeOnShards= ${tojson(sizes)}`,
      );
    },

    enableAutoSplit: (database = config()) => set(database, "autosplit", { enabled: true }),
    disableAutoSplit: (database = config()) => set(database, "autosplit", { enabled: false }),
    getShouldAutoSplit: (database = config()) => database.settings.findOne({ _id: "autosplit" })?.enabled ?? true,

    // Wait until routers that were active have written to the catalog again; returns those that have not.
    waitForPingChange(activePings, timeout = TIMEOUT_MS / 2, interval) {
      const deadline = Date.now() + timeout;
      const hasChanged = ({ _id, ping }) => {
        const entry = config().mongos.findOne({ _id });
        return entry === null || String(entry.ping) !== String(ping);
      };
      return activePings.filter((each) => {
        while (!hasChanged(each)) {
          if (Date.now() > deadline) return true;
          host.sleep(interval ?? 200);
        }
        return false;
      });
    },

    // The newest migration in the changelog: of all, or of a collection, a database or a namespace.
    _lastMigration(target) {
      const filter = { what: /^moveChunk/ };
      let database = config();
      if (target?.getFullName) [filter.ns, database] = [target.getFullName(), configOf(target)];
      else if (target?.getSiblingDB) [filter.ns, database] = [below(target), target.getSiblingDB("config")];
      else if (target?.s?.getDB) database = target.s.getDB("config");
      else if (target?.getDB) database = target.getDB("config");
      else if (target) filter.ns = String(target).includes(".") ? String(target) : below(target);
      return database.changelog.find(filter).sort({ time: -1 }).limit(1).toArray()[0] ?? null;
    },

    getRecentFailedRounds(database = config()) {
      const rounds = database.actionlog.find({ what: "balancer.round" }).sort({ time: -1 }).limit(5).toArray();
      const failed = rounds.filter((each) => each.details.errorOccurred);
      return { count: failed.length, lastErr: failed[0]?.details.errmsg ?? "", lastTime: failed[0]?.time ?? " " };
    },

    // The migrations of the last 24 hours: the number of successful ones, then those that failed by error and shards.
    getRecentMigrations(database = config()) {
      const recent = { time: { $gt: new Date(Date.now() - DAY_MS) }, what: "moveChunk.from" };
      const success = { "details.errmsg": { $exists: false }, "details.note": "success" };
      const reason = { msg: "$details.errmsg", from: "$details.from", to: "$details.to" };
      return [
        ...database.changelog.aggregate([
          { $match: { ...recent, ...success } },
          { $group: { _id: "Success", count: { $sum: 1 } } },
        ]).toArray(),
        ...database.changelog.aggregate([
          { $match: { ...recent, $nor: [success] } },
          { $group: { _id: reason, count: { $sum: 1 } } },
          { $project: { _id: { $ifNull: ["$_id.msg", "aborted"] }, from: "$_id.from", to: "$_id.to", count: 1 } },
        ]).toArray(),
      ];
    },

    getActiveMigrations: (database = config()) =>
      database.locks.find({ state: { $eq: 2 } }).toArray().map(({ _id, when }) => ({ _id, when })),

    help: () => Object.keys(helpers).filter((name) => !name.startsWith("_")).map((name) => `\tsh.${name}()\n`).join(""),
  };
  return Object.assign(helpers, {
    addShardTag: helpers.addShardToZone,
    removeShardTag: helpers.removeShardFromZone,
    addTagRange: helpers.updateZoneKeyRange,
    removeTagRange: helpers.removeRangeFromZone,
  });
}

const below = (database) => new RegExp(`^${RegExp.escape(String(database))}\\.`);

function dataFormat(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let value = Number(bytes ?? 0);
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit < 2 ? Math.floor(value) : Math.floor(value * 100) / 100}${units[unit]}`;
}

const sh = helpersOf(() => globalThis.db);

const onAdmin = (command) => globalThis.db.getSiblingDB("admin").runCommand(command);
const rs = {
  status: () => onAdmin({ replSetGetStatus: 1 }),
  conf: () => assert.commandWorked(onAdmin({ replSetGetConfig: 1 })).config,
  isMaster: () => globalThis.db.isMaster(),
  hello: () => globalThis.db.hello(),
  stepDown: (seconds = 60) => onAdmin({ replSetStepDown: seconds }),
  freeze: (seconds) => onAdmin({ replSetFreeze: seconds }),
  compareOpTimes: (left, right) => Math.sign(left.t - right.t) || timestampCmp(left.ts, right.ts),
  secondaryOk: (value = true) => globalThis.db.getMongo().setSecondaryOk(value),
};
Object.assign(rs, { config: rs.conf, slaveOk: rs.secondaryOk });

module.exports = { helpersOf, rs, sh };
