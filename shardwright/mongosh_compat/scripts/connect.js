// The commands that mongosh and drivers send when they connect, and the replies that identify a mongos.
const admin = db.getSiblingDB("admin");

const hello = db.hello();
assert.eq(hello.msg, "isdbgrid", "hello.msg");
assert(hello.isWritablePrimary, "a mongos is always writable");
assert.eq(hello.maxBsonObjectSize, 16777216, "maxBsonObjectSize");
assert.eq(hello.maxMessageSizeBytes, 48000000, "maxMessageSizeBytes");
assert.eq(hello.maxWriteBatchSize, 100000, "maxWriteBatchSize");
assert.eq(hello.logicalSessionTimeoutMinutes, 30, "logicalSessionTimeoutMinutes");
assert.eq(admin.runCommand({ isdbgrid: 1 }).isdbgrid, 1, "isdbgrid");

assert(/^6\.0\./.test(db.version()), `db.version() is ${db.version()}`);
assert.eq(admin.runCommand({ ping: 1 }).ok, 1, "ping");
assert.eq(db.serverStatus().process, "mongos", "serverStatus.process");
assert(admin.runCommand({ whatsmyuri: 1 }).you.startsWith("127.0.0.1:"), "whatsmyuri");
assert.eq(admin.runCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers, [], "connectionStatus");
assert.eq(admin.runCommand({ getCmdLineOpts: 1 }).ok, 1, "getCmdLineOpts");
assert.eq(admin.runCommand({ hostInfo: 1 }).ok, 1, "hostInfo");
assert(Array.isArray(admin.runCommand({ getLog: "startupWarnings" }).log), "getLog");
assert("find" in db.runCommand({ listCommands: 1 }).commands, "listCommands names find");
assert.failsWith(() => db.runCommand({ noSuchCommand: 1 }), 59);

const session = db.getMongo().startSession();
const counters = session.getDatabase("mongosh_connect").getCollection("counters");
counters.insertOne({ _id: "session", n: 1 });
assert.eq(counters.findOne({ _id: "session" }).n, 1, "a read in a session");
session.endSession();

assert(db.adminCommand({ listDatabases: 1 }).databases.some((each) => each.name === "mongosh_connect"), "listDatabases");
db.getSiblingDB("mongosh_connect").dropDatabase();
