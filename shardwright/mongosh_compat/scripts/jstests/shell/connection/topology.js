"use strict";
// The servers of one connection string, and server selection for commands.
const { ErrorCodes, isNetworkError } = require("../errors.js");
const { authenticate } = require("./scram.js");
const { WireConnection } = require("./wire.js");

const CONNECT_TIMEOUT_MS = 20_000;
const SELECTION_TIMEOUT_MS = 30_000;
const PAUSE_MS = 50;

class Topology {
  #seeds;
  #isSet;
  #connections = new Map();
  #primary = null;
  #logIns = new Map();

  constructor(seeds, isSet) {
    this.#seeds = seeds;
    this.#isSet = isSet;
  }

  // The connection to send a command on; `mode` is a read preference mode, `hostAndPort` requires that server.
  select(mode = "primary", hostAndPort = null) {
    if (hostAndPort !== null) return this.#connection(hostAndPort);
    if (!this.#isSet) return this.#anySeed();
    return this.#within(() => this.#member(mode));
  }

  // Update the servers' state after a failed exchange or a reply.
  noteFailure(hostAndPort) {
    this.#connections.get(hostAndPort)?.close();
    this.#connections.delete(hostAndPort);
    this.#primary = null;
  }

  noteReply(reply) {
    const codes = [
      ErrorCodes.NotWritablePrimary,
      ErrorCodes.PrimarySteppedDown,
      ErrorCodes.InterruptedDueToReplStateChange,
    ];
    if (reply.ok !== 1 && codes.includes(reply.code)) this.#primary = null;
  }

  // Authenticate every connection, also later ones, with one user of each database.
  logIn(logIn) {
    for (const each of this.#fromPrimary()) this.#run(each, () => authenticate(each, logIn));
    this.#logIns.set(logIn.db, logIn);
  }

  // Returns the reply of the primary.
  logOut(db) {
    this.#logIns.delete(db);
    const [reply] = this.#fromPrimary().map((each) => this.#run(each, () => each.run({ logout: 1, $db: db })));
    return reply;
  }

  // All open connections, the one of the primary first.
  #fromPrimary() {
    const first = this.select("primaryPreferred");
    return [first, ...[...this.#connections.values()].filter((each) => each !== first)];
  }

  #run(connection, action) {
    try {
      return action();
    } catch (error) {
      if (isNetworkError(error)) this.noteFailure(connection.host);
      throw error;
    }
  }

  close() {
    for (const connection of this.#connections.values()) connection.close();
    this.#connections.clear();
  }

  #connection(hostAndPort) {
    const known = this.#connections.get(hostAndPort);
    if (known !== undefined) return known;
    const connection = new WireConnection(hostAndPort, CONNECT_TIMEOUT_MS);
    for (const logIn of this.#logIns.values()) logInAgain(connection, logIn);
    this.#connections.set(hostAndPort, connection);
    return connection;
  }

  #anySeed() {
    let failure;
    for (const seed of this.#seeds) {
      try {
        return this.#connection(seed);
      } catch (error) {
        failure ??= error;
      }
    }
    throw failure;
  }

  #within(find) {
    const deadline = Date.now() + SELECTION_TIMEOUT_MS;
    for (;;) {
      const found = find();
      if (found !== null) return found;
      if (Date.now() > deadline) {
        const error = new Error(`Could not find host matching read preference in ${this.#seeds}`);
        error.code = ErrorCodes.FailedToSatisfyReadPreference;
        throw error;
      }
      host.sleep(PAUSE_MS);
    }
  }

  #member(mode) {
    if (mode === "primary" && this.#primary !== null) return this.#connection(this.#primary);
    const secondaries = [];
    for (const seed of this.#seeds) {
      const hello = this.#hello(seed);
      if (hello?.isWritablePrimary) {
        this.#primary = seed;
        if (!mode.startsWith("secondary")) return this.#connection(seed);
      } else if (hello?.secondary) secondaries.push(seed);
    }
    if (mode !== "primary" && secondaries.length > 0) return this.#connection(secondaries[0]);
    return mode === "secondaryPreferred" && this.#primary !== null ? this.#connection(this.#primary) : null;
  }

  #hello(seed) {
    try {
      return this.#connection(seed).run({ hello: 1, $db: "admin" });
    } catch (error) {
      if (!isNetworkError(error)) throw error;
      this.noteFailure(seed);
      return null;
    }
  }
}

// The user may have been dropped since; the connection is usable without it, as in the old shell.
function logInAgain(connection, logIn) {
  try {
    authenticate(connection, logIn);
  } catch (error) {
    if (isNetworkError(error)) throw error;
    host.write(`cannot authenticate again at ${connection.host}: ${error.message}\n`);
  }
}

module.exports = { Topology };
