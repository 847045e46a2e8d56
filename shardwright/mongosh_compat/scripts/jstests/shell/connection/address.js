"use strict";
// Connection strings: host:port, set/host:port,host:port, and mongodb:// URIs.
const { ErrorCodes } = require("../errors.js");

const DEFAULT_PORT = 27017;
const PORT_MAX = 65535;

// Returns {hosts: ["host:port"], set: name or null, database, options}.
function parseAddress(text) {
  if (text.startsWith("mongodb://")) return parseUri(text);
  // host:port/database is the other old form; a set's name has no port.
  const [, first, , rest] = /^([^/]*)(\/(.*))?$/.exec(text);
  if (rest === undefined || first.includes(":"))
    return { hosts: hostList(first), set: null, database: rest || "test", options: {} };
  if (first === "") throw parsingError(`Failed to parse mongodb address "${text}": missing host name`);
  return { hosts: hostList(rest.split("/")[0]), set: first, database: rest.split("/")[1] ?? "test", options: {} };
}

function parseUri(text) {
  const [, user, password, hosts, database, query] =
    /^mongodb:\/\/(?:([^:@/]*)(?::([^@/]*))?@)?([^/?]*)(?:\/([^?]*))?(?:\?(.*))?$/.exec(text);
  const options = Object.fromEntries(
    (query ?? "")
      .split("&")
      .filter(Boolean)
      .map((part) => part.split("=").map(decodeURIComponent)),
  );
  const given = { user, password, database: database ?? "" };
  return { hosts: hostList(hosts), set: options.replicaSet ?? null, database: database || "test", options, given };
}

const hostList = (text) => text.split(",").map(hostAndPort);

function hostAndPort(text) {
  const [name, port = String(DEFAULT_PORT), ...more] = text.split(":");
  if (more.length > 0) throw parsingError(`More than one ':' detected. "${text}" would need brackets for IPv6`);
  if (name === "") throw parsingError(`Empty host component parsing HostAndPort from "${text}"`);
  if (port === "") throw parsingError(`No digits after the ':' in "${text}"`);
  if (!/^\d+$/.test(port)) throw parsingError(`the port in "${text}" is not a number`);
  if (Number(port) > PORT_MAX) throw parsingError(`Port number ${port} out of range in "${text}"`);
  return `${name}:${port}`;
}

const parsingError = (message) => Object.assign(new Error(message), { code: ErrorCodes.FailedToParse });

// The address given to `connect`.
function checkedAddress(value) {
  if (value instanceof MongoURI) return value.uri;
  if (value === undefined) throw new Error("Missing connection string");
  if (typeof value !== "string") throw new Error(`Incorrect type "${typeof value}" for connection string "${value}"`);
  if (value.trim() === "") throw new Error("Empty connection string");
  return value.trim();
}

const splitHost = (host) => {
  const [, name, port] = /^(.*):(\d+)$/.exec(host);
  return { name: name === "localhost" ? "127.0.0.1" : name, port: Number(port) };
};

// `MongoURI(text)`: the parts of a connection string.
function MongoURI(text) {
  if (!new.target) return new MongoURI(text);
  const { hosts, set, options, given = {} } = parseAddress(text);
  const servers = hosts.map((server) => {
    const { name, port } = /^(?<name>.*):(?<port>\d+)$/.exec(server).groups;
    return { server, host: name, port: Number(port) };
  });
  const { user = "", password = "", database = "" } = given;
  const decoded = { user: decodeURIComponent(user), password: decodeURIComponent(password) };
  Object.assign(this, { uri: text, ...decoded, options, database, setName: set ?? "", servers });
}
MongoURI.prototype.toString = function () {
  return this.uri;
};

module.exports = { MongoURI, checkedAddress, parseAddress, splitHost };
