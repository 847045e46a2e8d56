"use strict";
// Hash functions for authentication. All bytes are buffers.
const crypto = require("crypto");

module.exports = {
  digest: (name, bytes) => crypto.createHash(name).update(bytes).digest(),
  hmac: (name, key, bytes) => crypto.createHmac(name, key).update(bytes).digest(),
  pbkdf2: (name, password, salt, iterations, length) =>
    crypto.pbkdf2Sync(password, salt, iterations, length, name),
  randomBase64: (count) => crypto.randomBytes(count).toString("base64"),
};
