"use strict";
// `shellHelper(command, rest)`: the commands of an interactive shell, such as `show tables` and `use name`.
const { print } = require("./js_test.js");

const LISTS = {
  dbs: () => globalThis.db.getMongo().getDBNames(),
  collections: () => globalThis.db.getCollectionNames(),
  users: () => globalThis.db.getUsers(),
  roles: () => globalThis.db._runOrThrow({ rolesInfo: 1, showBuiltinRoles: true }, "rolesInfo").roles,
  logs: () => globalThis.db.adminCommand({ getLog: "*" }).names,
};
Object.assign(LISTS, { databases: LISTS.dbs, tables: LISTS.collections });

function shellHelper(command, rest = "") {
  const words = rest.trim().replace(/;$/, "").trim();
  if (!Object.hasOwn(shellHelper, command) || typeof shellHelper[command] !== "function")
    throw new Error(`no command [${command}]`);
  return shellHelper[command](...words.split(/\s+/));
}

Object.assign(shellHelper, {
  show(what) {
    if (!Object.hasOwn(LISTS, what)) throw new Error(`don't know how to show [${what}]`);
    for (const each of LISTS[what]()) print(each);
    return "";
  },

  use(name) {
    globalThis.db = globalThis.db.getSiblingDB(name);
    print(`switched to db ${name}`);
  },
});

module.exports = { shellHelper };
