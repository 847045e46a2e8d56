/**
 * A cluster with access control: the first users of the cluster and of a shard, authentication, and servers that start
 * again with a key file, or with another one.
 */
(function () {
  "use strict";

  const keyFile = `${MongoRunner.dataPath}key`;
  const otherKeyFile = `${MongoRunner.dataPath}other-key`;
  writeFile(keyFile, "c29tZSBrZXk\n");
  writeFile(otherKeyFile, "b3RoZXIga2V5\n");
  const st = new ShardingTest({ shards: 1, mongos: 1, config: 1, rs: { nodes: 2 }, other: { keyFile, chunkSize: 2 } });
  const admin = st.s.getDB("admin");

  jsTestLog("Before the first user");
  assert.commandFailedWithCode(admin.runCommand({ listShards: 1 }), ErrorCodes.Unauthorized);
  assert.eq(0, admin.auth("root", "secret"));
  admin.createUser({ user: "root", pwd: "secret", roles: jsTest.adminUserRoles });
  assert.throws(() => admin.createUser({ user: "second", pwd: "secret", roles: jsTest.adminUserRoles }));

  jsTestLog("Log-ins");
  assert.eq(0, admin.auth("root", "wrong"));
  const error = assert.throws(() => admin._authOrThrow("root", "wrong"));
  assert.eq(ErrorCodes.AuthenticationFailed, error.code);
  for (const mechanism of ["SCRAM-SHA-1", "SCRAM-SHA-256"]) {
    assert.eq(1, admin.auth({ user: "root", pwd: "secret", mechanism }));
    assert.eq("root", admin.runCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers[0].user);
    assert.commandWorked(admin.logout());
  }
  assert.commandFailedWithCode(admin.runCommand({ listShards: 1 }), ErrorCodes.Unauthorized);
  assert.eq(1, admin.auth("root", "secret"));
  assert.eq(2, st.config.settings.findOne({ _id: "chunksize" }).value);
  assert.eq(1, st.config.shards.count());
  st.s.getDB("shop").createUser({ user: "reader", pwd: "pass", roles: jsTest.readOnlyUserRoles });
  assert.commandWorked(st.s.getDB("shop").goods.insert({ _id: 1 }));
  const byUri = new Mongo(`mongodb://reader:pass@${st.s.host}/shop`);
  assert.eq(1, byUri.getDB("shop").goods.findOne()._id);
  assert.writeErrorWithCode(byUri.getDB("shop").goods.insert({ _id: 2 }), ErrorCodes.Unauthorized);

  jsTestLog("A shard has users of its own");
  const shard = st.rs0.getPrimary();
  shard.waitForClusterTime(60);
  assert.commandFailedWithCode(shard.adminCommand({ serverStatus: 1 }), ErrorCodes.Unauthorized);
  assert.eq(0, shard.getDB("admin").auth("root", "secret"));
  shard.getDB("admin").createUser({ user: "local", pwd: "pass", roles: ["root"] }, { w: 2 });
  assert.commandFailedWithCode(shard.adminCommand({ serverStatus: 1 }), ErrorCodes.Unauthorized);
  st.rs0.awaitReplication();
  st.rs0.waitForState(st.rs0.getSecondaries(), ReplSetTest.State.SECONDARY);
  const set = new Mongo(st.rs0.getURL());
  assert.eq(1, set.getDB("admin").auth("local", "pass"));
  assert.eq(1, set.getDB("shop").goods.find().readPref("secondary").itcount());
  assert.eq(1, set.getDB("shop").goods.find().readPref("primary").itcount());
  const goods = st.s.getDB("shop").goods;
  goods.setSecondaryOk();
  const { serverInfo } = goods.find().explain().queryPlanner.winningPlan.shards[0];
  assert.eq(st.rs0.getSecondary().host, `${serverInfo.host}:${serverInfo.port}`, "a plan is from the same member");

  jsTestLog("Members of the cluster");
  assert.throws(() => authutil.asCluster(shard, otherKeyFile, () => true));
  const uptime = authutil.asCluster(st.rs0.nodes, keyFile, () => shard.adminCommand({ serverStatus: 1 }).uptime);
  assert.gte(uptime, 0);
  assert.commandFailedWithCode(shard.adminCommand({ serverStatus: 1 }), ErrorCodes.Unauthorized);

  jsTestLog("A second router, and restarts");
  const router = MongoRunner.runMongos({ keyFile, configdb: st.s.savedOptions.configdb });
  assert.commandFailedWithCode(router.adminCommand({ listShards: 1 }), ErrorCodes.Unauthorized);
  assert.eq(1, router.getDB("admin").auth("root", "secret"));
  assert.commandWorked(router.adminCommand({ listShards: 1 }));
  MongoRunner.stopMongos(router);
  st.restartMongos(0);
  assert.commandFailedWithCode(st.s.adminCommand({ listShards: 1 }), ErrorCodes.Unauthorized);
  assert.eq(1, st.s.getDB("admin").auth("root", "secret"));
  st.rs0.stopSet(undefined, true);
  st.rs0.startSet({}, true);
  assert.commandFailedWithCode(st.rs0.getPrimary().adminCommand({ serverStatus: 1 }), ErrorCodes.Unauthorized);
  assert.soonNoExcept(() => st.s.getDB("shop").goods.findOne()._id === 1, "the shard after its restart");
  assert.soonNoExcept(() => set.getDB("shop").goods.findOne()._id === 1, "a connection authenticates again");

  jsTestLog("Only a shard with the same key can be added");
  const other = new ReplSetTest({ name: "other", nodes: 1 });
  other.startSet({ keyFile: otherKeyFile, shardsvr: "" });
  other.initiate();
  assert.commandFailed(st.s.adminCommand({ addShard: other.getURL() }));
  other.stopSet();
  other.startSet({ keyFile, restart: true });
  assert.commandWorked(st.s.adminCommand({ addShard: other.getURL() }));

  const lone = MongoRunner.runMongod({ keyFile, auth: "" });
  assert.commandFailedWithCode(lone.getDB("shop").runCommand({ find: "goods" }), ErrorCodes.Unauthorized);
  MongoRunner.stopMongod(lone);
  st.stop();
  other.stopSet();
})();
