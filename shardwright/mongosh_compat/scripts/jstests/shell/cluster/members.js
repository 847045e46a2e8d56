"use strict";
// Key files, and the connections that this library opens for itself. With a key file they are members of the cluster:
// they may do everything, and the suite's own connections keep their users.
const { memberOf } = require("../authutil.js");
const { Mongo } = require("../connection/mongo.js");
const { locate } = require("../files.js");

const UNLIMITED_FAILURES = ["--failed-log-ins", "100000"];

// A connection as a member of the cluster; `keyFile` may be null.
function connectAsMember(address, keyFile) {
  const connection = new Mongo(address);
  if (isKeyFile(keyFile)) connection.auth(memberOf(keyFile));
  return connection;
}

// Call an action with such a connection.
function withMember(address, keyFile, action) {
  const connection = connectAsMember(address, keyFile);
  try {
    return action(connection);
  } finally {
    connection.close();
  }
}

const isKeyFile = (name) => typeof name === "string" && name !== "";

// A copy of a key file in `directory`, where only its owner may read it: servers refuse the files of a checkout.
function privateKeyFile(keyFile, directory) {
  const text = host.files.read(locate(keyFile));
  const path = host.files.join(directory, `key-${host.files.md5OfText(text)}`);
  if (!host.files.exists(path)) host.files.writePrivately(path, text);
  return path;
}

// Options of a mongod.
const mongodKeyWords = (keyFile, directory) =>
  isKeyFile(keyFile) ? ["--keyFile", privateKeyFile(keyFile, directory)] : [];

// Options of a daemon. MongoDB's servers do not limit failures on a connection.
const daemonKeyWords = (keyFile, directory) =>
  isKeyFile(keyFile) ? ["--key-file", privateKeyFile(keyFile, directory), ...UNLIMITED_FAILURES] : [];

module.exports = { connectAsMember, daemonKeyWords, isKeyFile, mongodKeyWords, withMember };
