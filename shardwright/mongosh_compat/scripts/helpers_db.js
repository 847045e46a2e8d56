// Every helper of `db` that a router has an answer for.
const test = db.getSiblingDB("mongosh_helpers_db");
test.dropDatabase();
test.dropAllUsers();
test.dropAllRoles();

// Commands, and information about the server
assert.eq(test.getName(), "mongosh_helpers_db", "getName");
assert.eq(test.runCommand({ ping: 1 }).ok, 1, "runCommand");
assert.eq(test.adminCommand({ ping: 1 }).ok, 1, "adminCommand");
assert.eq(test.hello().msg, "isdbgrid", "hello");
assert.eq(test.isMaster().msg, "isdbgrid", "isMaster");
assert(test.version().startsWith("6.0."), "version");
assert.eq(test.serverBuildInfo().version, test.version(), "serverBuildInfo");
assert.eq(test.serverBits(), 64, "serverBits");
assert.eq(test.serverStatus().process, "mongos", "serverStatus");
assert(Array.isArray(test.serverCmdLineOpts().argv), "serverCmdLineOpts");
assert(test.hostInfo().system.numCores > 0, "hostInfo");
assert("find" in test.listCommands().value, "listCommands");
assert(test.commandHelp("find").startsWith("help for: find "), "commandHelp");
assert(test.getMongo().getDBNames().includes("config"), "getMongo");
assert(test.help().attr.length > 10, "help");
assert(Array.isArray(test.currentOp().inprog), "currentOp");
assert.failsWith(() => test.killOp("nonsense"), 28625);
assert.eq(test.getLastError(), null, "getLastError");
assert.eq(test.getLastErrorObj().ok, 0, "getLastErrorObj");

// Logs; a router profiles nothing
assert.eq(test.setLogLevel(1, "query").ok, 1, "setLogLevel");
assert.eq(test.getLogComponents().query.verbosity, 1, "getLogComponents");
test.setLogLevel(-1, "query");
const slow = test.getProfilingStatus().slowms;
assert.eq(test.setProfilingLevel(0, { slowms: slow + 1 }).slowms, slow, "setProfilingLevel");
assert.eq(test.setProfilingLevel(0, { slowms: slow }).slowms, slow + 1, "getProfilingStatus");
assert.failsWith(() => test.setProfilingLevel(1), 2);

// Collections
assert.eq(test.createCollection("made", { validator: { a: { $gt: 0 } } }).ok, 1, "createCollection");
test.getCollection("made").insertMany([{ a: 1 }, { a: 2 }]);
assert.eq(test.createView("big", "made", [{ $match: { a: { $gt: 1 } } }]).ok, 1, "createView");
assert.eq(test.big.countDocuments(), 1, "the view");
assert.eq(test.getCollectionNames().sort(), ["big", "made", "system.views"], "getCollectionNames");
assert.eq(test.getCollectionInfos({ name: "big" })[0].options.viewOn, "made", "getCollectionInfos");
assert.eq(test.aggregate([{ $documents: [{ a: 7 }] }]).toArray(), [{ a: 7 }], "aggregate");
assert.eq(test.stats().objects, 3, "stats");
test.printCollectionStats();
const stream = test.watch([{ $match: { "fullDocument.a": 3 } }]);
test.made.insertMany([{ a: 4 }, { a: 3 }]);
assert.eq(stream.next().fullDocument.a, 3, "watch");
stream.close();
test.printShardingStatus();

// Users and roles
const privilege = (...actions) => ({ resource: { db: test.getName(), collection: "made" }, actions });
const actionsOf = (role) => test.getRole(role, { showPrivileges: true }).privileges.flatMap((each) => each.actions);
test.createRole({ role: "reader", privileges: [privilege("find")], roles: [] });
test.grantPrivilegesToRole("reader", [privilege("insert")]);
assert.eq(actionsOf("reader").sort(), ["find", "insert"], "grantPrivilegesToRole");
test.revokePrivilegesFromRole("reader", [privilege("insert")]);
assert.eq(actionsOf("reader"), ["find"], "revokePrivilegesFromRole");
const rolesOf = (found) => found.roles.map((each) => each.role).sort();
test.grantRolesToRole("reader", ["read"]);
assert.eq(rolesOf(test.getRole("reader")), ["read"], "grantRolesToRole");
test.revokeRolesFromRole("reader", ["read"]);
assert.eq(rolesOf(test.getRole("reader")), [], "revokeRolesFromRole");
test.updateRole("reader", { roles: ["readWrite"] });
assert.eq(rolesOf(test.getRole("reader")), ["readWrite"], "updateRole");
assert.eq(test.getRoles().roles.map((each) => each.role), ["reader"], "getRoles");
test.createUser({ user: "ada", pwd: "secret", roles: [] });
test.grantRolesToUser("ada", ["reader", "read"]);
test.revokeRolesFromUser("ada", ["read"]);
assert.eq(rolesOf(test.getUser("ada")), ["reader"], "grantRolesToUser and revokeRolesFromUser");
test.changeUserPassword("ada", "other");
test.updateUser("ada", { customData: { age: 36 } });
assert.eq(test.getUsers().users.map((user) => user.customData), [{ age: 36 }], "updateUser");
assert.eq(test.dropUser("ada").ok, 1, "dropUser");
assert.eq(test.dropRole("reader").ok, 1, "dropRole");
test.createUser({ user: "bob", pwd: "secret", roles: [] });
test.createRole({ role: "writer", privileges: [], roles: [] });
assert.eq(test.dropAllUsers().n, 1, "dropAllUsers");
assert.eq(test.dropAllRoles().n, 1, "dropAllRoles");

// Commands that a mongos refuses as well
const refused = (action) => {
  try {
    action();
  } catch (error) {
    return error;
  }
  throw new Error("assertion failed: nothing was refused");
};
assert.includes(refused(() => test.fsyncLock()).message, "mongos");
assert.eq(refused(() => test.fsyncUnlock()).codeName, "CommandNotFound", "fsyncUnlock");
for (const name of ["getReplicationInfo", "printReplicationInfo", "printSecondaryReplicationInfo"])
  assert.includes(refused(() => test[name]()).message, "Are you connected to a repl");

assert.eq(test.setSecondaryOk(), undefined, "setSecondaryOk");
assert.eq(test.dropDatabase().ok, 1, "dropDatabase");
assert.eq(test.getCollectionNames(), [], "nothing is left");
