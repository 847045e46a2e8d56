"use strict";
// `authutil`: logs in and out on several connections. A key file makes a connection a member of the cluster.
const { assert } = require("./assert/assert.js");
const { cat } = require("./files.js");
const { tojson } = require("./tojson.js");

const listOf = (connections) => (Array.isArray(connections) ? connections : [connections]);

// The user that members of a cluster authenticate as. Blanks in a key do not count.
const memberOf = (keyFile) => ({ user: "__system", db: "local", pwd: cat(keyFile).replace(/\s/g, "") });

const authutil = {
  logout(connections, database) {
    for (const each of listOf(connections)) each.getDB(database).logout();
  },

  assertAuthenticate(connections, database, logIn) {
    try {
      for (const each of listOf(connections))
        assert(each.getDB(database).auth(logIn), () => `${each} refuses ${tojson(logIn)} of ${database}`);
    } catch (error) {
      logOutIfPossible(connections, database);
      throw error;
    }
  },

  assertAuthenticateFails(connections, database, logIn) {
    for (const each of listOf(connections))
      assert(!each.getDB(database).auth(logIn), () => `${each} accepts ${tojson(logIn)} of ${database}`);
  },

  // Run an action while the connections are members of the cluster.
  asCluster(connections, keyFile, action) {
    const member = memberOf(keyFile);
    authutil.assertAuthenticate(connections, member.db, member);
    try {
      return action();
    } finally {
      logOutIfPossible(connections, member.db);
    }
  },
};

function logOutIfPossible(connections, database) {
  for (const each of listOf(connections)) {
    try {
      each.getDB(database).logout();
    } catch {
      // The server may have been stopped.
    }
  }
}

module.exports = { authutil, memberOf };
