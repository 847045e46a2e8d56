// Log-ins and the helpers of users and roles in mongosh, whose connection has logged in as root.
/* globals db, assert, rootName, rootPassword */
function refused(work, code) {
  try {
    work();
  } catch (error) {
    if (error.code !== code) throw error;
    return;
  }
  throw new Error(`not refused: ${work}`);
}
function same(seen, expected) {
  if (EJSON.stringify(seen) !== EJSON.stringify(expected)) throw new Error(`${EJSON.stringify(seen)} is not ${EJSON.stringify(expected)}`);
}
const shop = db.getSiblingDB("mongosh_auth");
const users = () => db.runCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers.map((one) => `${one.user}@${one.db}`);
shop.dropAllUsers();
shop.dropAllRoles();

shop.createRole({ role: "seller", privileges: [{ resource: { db: "mongosh_auth", collection: "goods" }, actions: ["find"] }], roles: [] });
shop.createUser({ user: "ada", pwd: "pencil", roles: ["seller"], customData: { a: 1 } });
same(shop.getUser("ada").roles, [{ role: "seller", db: "mongosh_auth" }]);
same(shop.getUsers().users.length, 1);
same(shop.getRole("seller", { showPrivileges: true }).privileges[0].actions, ["find"]);
same(shop.getRoles().roles.length, 1);

const admin = db.getSiblingDB("admin");
admin.logout();
same(users(), []);
refused(() => shop.goods.findOne(), 13);
refused(() => shop.auth("ada", "wrong"), 18);
refused(() => shop.auth("nobody", "pencil"), 18);
same(shop.auth("ada", "pencil").ok, 1);
same(users(), ["ada@mongosh_auth"]);
same(shop.goods.findOne(), null);
refused(() => shop.goods.insertOne({}), 13);
refused(() => shop.changeUserPassword("ada", "eraser"), 13);

shop.logout();
admin.auth(rootName, rootPassword);
shop.grantPrivilegesToRole("seller", [{ resource: { db: "mongosh_auth", collection: "goods" }, actions: ["insert"] }]);
shop.updateRole("seller", { roles: [{ role: "read", db: "mongosh_auth" }] });
shop.revokePrivilegesFromRole("seller", [{ resource: { db: "mongosh_auth", collection: "goods" }, actions: ["find"] }]);
shop.grantRolesToRole("seller", [{ role: "dbAdmin", db: "mongosh_auth" }]);
shop.revokeRolesFromRole("seller", [{ role: "dbAdmin", db: "mongosh_auth" }]);
shop.changeUserPassword("ada", "eraser");
shop.updateUser("ada", { customData: { a: 2 }, mechanisms: ["SCRAM-SHA-256"], pwd: "eraser" });
shop.grantRolesToUser("ada", [{ role: "dbAdmin", db: "mongosh_auth" }]);
shop.revokeRolesFromUser("ada", [{ role: "dbAdmin", db: "mongosh_auth" }]);
same(shop.getUser("ada", { showCredentials: true }).mechanisms, ["SCRAM-SHA-256"]);

admin.logout();
refused(() => shop.auth("ada", "pencil"), 18);
refused(() => shop.auth({ user: "ada", pwd: "eraser", mechanism: "SCRAM-SHA-1" }), 18);
shop.auth({ user: "ada", pwd: "eraser", mechanism: "SCRAM-SHA-256" });
same(shop.goods.insertOne({ _id: 1 }).acknowledged, true);
same(shop.goods.findOne(), { _id: 1 });

shop.logout();
admin.auth(rootName, rootPassword);
shop.dropUser("ada");
shop.dropRole("seller");
same(shop.getUser("ada"), null);
same(shop.getRole("seller"), null);
shop.dropDatabase();
