// Log-ins with the Node.js driver.
// Arguments: host:port, user and password of a root; with TLS also options of the connection string, and the subject of
// the certificate that they name.
import assert from "node:assert/strict";
import { MongoClient } from "mongodb";

const [address, root, rootPassword, options = "", subject] = process.argv.slice(2);
const query = options && `?${options}`;

async function as(username, password, options, work) {
  const client = new MongoClient(`mongodb://${address}/${query}`, { auth: { username, password }, ...options });
  try {
    return await work(client);
  } finally {
    await client.close();
  }
}

const ping = (client) => client.db("node_auth").collection("c").findOne();
const whoIs = async (client) =>
  (await client.db().command({ connectionStatus: 1 })).authInfo.authenticatedUsers.map((one) => `${one.user}@${one.db}`);

await as(root, rootPassword, {}, async (client) => {
  const db = client.db("node_auth");
  await db.dropDatabase();
  await db.command({ dropAllUsersFromDatabase: 1 });
  const roles = ["readWrite"];
  for (const mechanism of ["SCRAM-SHA-1", "SCRAM-SHA-256"])
    await db.command({ createUser: mechanism, pwd: "pencil", roles, mechanisms: [mechanism] });
  for (const [name, pwd] of [["ada", "pencil"], ["a=b,c@d:e/f", "p@ss:w/rd,=%"], ["\u2168", "\u2163"], ["jürgen", "Käse"]])
    await db.command({ createUser: name, pwd, roles });
});

const inDb = { authSource: "node_auth" };
for (const mechanism of ["SCRAM-SHA-1", "SCRAM-SHA-256"]) {
  await as(mechanism, "pencil", { ...inDb, authMechanism: mechanism }, ping);
  // Negotiated: the guess of the driver is right for one of them.
  await as(mechanism, "pencil", inDb, ping);
  const other = mechanism === "SCRAM-SHA-1" ? "SCRAM-SHA-256" : "SCRAM-SHA-1";
  await assert.rejects(as(mechanism, "pencil", { ...inDb, authMechanism: other }, ping), { code: 18 });
}
for (const [name, password] of [["a=b,c@d:e/f", "p@ss:w/rd,=%"], ["\u2168", "\u2163"], ["\u2168", "IV"], ["jürgen", "Käse"]])
  assert.deepEqual(await as(name, password, inDb, whoIs), [`${name}@node_auth`]);
for (const [name, password, options] of [
  ["ada", "wrong", inDb],
  ["ada", "pencil", {}],
  ["nobody", "pencil", inDb],
  ["IX", "IV", inDb],
  ["ada", "PENCIL", inDb],
])
  await assert.rejects(as(name, password, options, ping), { code: 18, codeName: "AuthenticationFailed" });
await assert.rejects(as("ada", "pencil", { ...inDb, authMechanism: "PLAIN" }, ping), { code: 334 });

// By the connection string, with many connections at once.
const encoded = `mongodb://${encodeURIComponent("a=b,c@d:e/f")}:${encodeURIComponent("p@ss:w/rd,=%")}@${address}/node_auth${query}`;
const client = new MongoClient(encoded, { minPoolSize: 10 });
await Promise.all(Array.from({ length: 20 }, (_, n) => client.db().collection("c").insertOne({ n })));
assert.equal(await client.db().collection("c").countDocuments(), 20);
await assert.rejects(client.db("other").collection("c").findOne(), { code: 13, codeName: "Unauthorized" });
await client.close();
const stranger = new MongoClient(`mongodb://${address}/${query}`);
await assert.rejects(ping(stranger), { code: 13, message: "command find requires authentication" });
await stranger.close();

if (subject) {
  const external = (work) => as(root, rootPassword, {}, (client) => work(client.db("$external")));
  const roles = [{ role: "readWrite", db: "node_auth" }];
  await external((db) => db.command({ createUser: subject, roles }));
  const certified = new MongoClient(`mongodb://${address}/${query}&authMechanism=MONGODB-X509`);
  assert.deepEqual(await whoIs(certified), [`${subject}@$external`]);
  assert.equal(await certified.db("node_auth").collection("c").countDocuments(), 20);
  await assert.rejects(certified.db("other").collection("c").findOne(), { code: 13, codeName: "Unauthorized" });
  await certified.close();
  await external((db) => db.command({ dropUser: subject }));
  const unknown = new MongoClient(`mongodb://${address}/${query}&authMechanism=MONGODB-X509`);
  await assert.rejects(ping(unknown), { code: 11, codeName: "UserNotFound" });
  await unknown.close();
}
console.log("done");
