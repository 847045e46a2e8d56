"use strict";
// OP_MSG over one connection to one server.
const { fromBytes, toBytes } = require("../bson_codec.js");
const { NetworkError } = require("../errors.js");
const { splitHost } = require("./address.js");

const OP_MSG = 2013;
const MORE_TO_COME = 2;
const HEADER_BYTES = 16;

let lastRequest = 0;

class WireConnection {
  #number;

  constructor(hostAndPort, timeoutMs) {
    this.host = hostAndPort;
    const { name, port } = splitHost(hostAndPort);
    try {
      this.#number = host.network.connect(name, port, timeoutMs);
    } catch (error) {
      throw couldNotConnect(hostAndPort, error.message);
    }
  }

  // Send a command; `sequence` is {identifier, documents: [bytes]}. Returns the reply, or null if `isUnanswered`.
  run(command, { sequence, isUnanswered = false } = {}) {
    const name = Object.keys(command)[0];
    const bytes = encode(toBytes(command), sequence, isUnanswered);
    let reply;
    try {
      reply = host.network.exchange(this.#number, bytes, { expectsReply: !isUnanswered });
    } catch (error) {
      throw new NetworkError(name, this.host, error.message);
    }
    return reply === null ? null : decode(Buffer.from(reply.buffer, reply.byteOffset, reply.length));
  }

  close() {
    host.network.close(this.#number);
  }
}

function couldNotConnect(hostAndPort, reason) {
  const error = new Error(
    `couldn't connect to server ${hostAndPort}, connection attempt failed: SocketException: ${reason}`,
  );
  Object.defineProperty(error, "isNetworkError", { value: true });
  return error;
}

function encode(body, sequence, isUnanswered) {
  const parts = [Buffer.from([0]), body];
  if (sequence !== undefined) parts.push(...sequenceParts(sequence));
  const length = HEADER_BYTES + 4 + parts.reduce((sum, part) => sum + part.length, 0);
  const header = Buffer.alloc(HEADER_BYTES + 4);
  header.writeInt32LE(length, 0);
  header.writeInt32LE(++lastRequest, 4);
  header.writeInt32LE(OP_MSG, 12);
  header.writeUInt32LE(isUnanswered ? MORE_TO_COME : 0, 16);
  return Buffer.concat([header, ...parts], length);
}

function sequenceParts({ identifier, documents }) {
  const name = Buffer.from(`${identifier}\0`);
  const size = Buffer.alloc(4);
  size.writeInt32LE(4 + name.length + documents.reduce((sum, each) => sum + each.length, 0), 0);
  return [Buffer.from([1]), size, name, ...documents];
}

// The body of a reply, which no server divides into sequences.
function decode(message) {
  const body = HEADER_BYTES + 5;
  return fromBytes(message.subarray(body, body + message.readInt32LE(body)));
}

module.exports = { WireConnection };
