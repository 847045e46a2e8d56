"use strict";
// Authentication of one connection to one server: SCRAM-SHA-1 and SCRAM-SHA-256.
const { Binary, Int32 } = require("bson");
const { ErrorCodes, _getErrorWithCode } = require("../errors.js");

const MECHANISMS = {
  "SCRAM-SHA-1": { hash: "sha1", length: 20, isDigested: true },
  "SCRAM-SHA-256": { hash: "sha256", length: 32, isDigested: false },
};
const NONCE_BYTES = 24;

// `login` is {db, user, pwd, mechanism?, digestPassword?}; without a mechanism, the server is asked for the user's.
function authenticate(connection, login) {
  const name = login.mechanism ?? mechanismOf(connection, login);
  const mechanism = MECHANISMS[name];
  if (mechanism === undefined) throw failure({ code: ErrorCodes.BadValue }, `unknown mechanism ${name}`);
  const first = `n=${login.user.replace(/=/g, "=3D").replace(/,/g, "=2C")},r=${host.hashes.randomBase64(NONCE_BYTES)}`;
  const payload = bytesOf(`n,,${first}`);
  const start = { saslStart: 1, mechanism: name, payload, options: { skipEmptyExchange: true } };
  const challenge = run(connection, login.db, start);
  const { clientFinal, serverSignature } = proof(mechanism, login, first, textOf(challenge.payload));
  const conversation = { saslContinue: 1, conversationId: new Int32(challenge.conversationId) };
  let reply = run(connection, login.db, { ...conversation, payload: bytesOf(clientFinal) });
  if (fieldsOf(textOf(reply.payload)).v !== serverSignature) throw failure({}, "the server does not know the password");
  while (!reply.done) reply = run(connection, login.db, { ...conversation, payload: bytesOf("") });
}

function mechanismOf(connection, { db, user }) {
  const { saslSupportedMechs: known } = connection.run({ hello: 1, saslSupportedMechs: `${db}.${user}`, $db: db });
  return known === undefined || known.includes("SCRAM-SHA-256") ? "SCRAM-SHA-256" : "SCRAM-SHA-1";
}

function proof({ hash, length, isDigested }, { user, pwd, digestPassword = isDigested }, first, challenge) {
  const { digest, hmac, pbkdf2 } = host.hashes;
  const { r: nonce, s: salt, i: iterations } = fieldsOf(challenge);
  const password = digestPassword ? digest("md5", `${user}:mongo:${pwd}`).toString("hex") : pwd.normalize("NFKC");
  const salted = pbkdf2(hash, password, Buffer.from(salt, "base64"), Number(iterations), length);
  const clientKey = hmac(hash, salted, "Client Key");
  const withoutProof = `c=biws,r=${nonce}`;
  const message = `${first},${challenge},${withoutProof}`;
  const signature = hmac(hash, digest(hash, clientKey), message);
  const proven = Buffer.from(clientKey.map((byte, index) => byte ^ signature[index])).toString("base64");
  return {
    clientFinal: `${withoutProof},p=${proven}`,
    serverSignature: hmac(hash, hmac(hash, salted, "Server Key"), message).toString("base64"),
  };
}

function run(connection, db, command) {
  const reply = connection.run({ ...command, $db: db });
  if (reply.ok !== 1) throw failure(reply, reply.errmsg);
  return reply;
}

const failure = (reply, message) =>
  Object.assign(_getErrorWithCode(reply, message), { code: reply.code ?? ErrorCodes.AuthenticationFailed });

const bytesOf = (text) => new Binary(Buffer.from(text));
const textOf = (binary) => Buffer.from(binary.buffer.subarray(0, binary.position)).toString();
const fieldsOf = (text) => Object.fromEntries(text.split(",").map((part) => [part[0], part.slice(2)]));

module.exports = { authenticate };
