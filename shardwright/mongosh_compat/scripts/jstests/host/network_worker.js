"use strict";
// The thread that owns the sockets. Of the wire protocol it reads only the length of messages.
const net = require("net");
const { workerData } = require("worker_threads");

const { port, signal } = workerData;
const connections = new Map();
let lastNumber = 0;

class Connection {
  #received = Buffer.alloc(0);
  #chunks = [];
  #length = 0;
  #waiting = null;
  #failure = null;

  constructor(socket) {
    this.socket = socket;
    socket.on("data", (chunk) => this.#take(chunk));
    socket.on("error", (error) => this.#fail(error.message));
    socket.on("close", () => this.#fail("connection closed by peer"));
  }

  exchange(bytes, expectsReply) {
    return new Promise((resolve, reject) => {
      if (this.#failure !== null) return reject(new Error(this.#failure));
      this.socket.write(bytes);
      if (!expectsReply) return resolve(null);
      this.#waiting = { resolve, reject };
    });
  }

  #take(chunk) {
    this.#chunks.push(chunk);
    this.#length += chunk.length;
    if (this.#length < 4) return;
    if (this.#chunks[0].length < 4) this.#join();
    if (this.#length < this.#chunks[0].readInt32LE(0)) return;
    this.#join();
    const end = this.#received.readInt32LE(0);
    const message = this.#received.subarray(0, end);
    this.#chunks = end < this.#length ? [this.#received.subarray(end)] : [];
    this.#length -= end;
    const waiting = this.#waiting;
    this.#waiting = null;
    waiting?.resolve(message);
  }

  #join() {
    this.#received = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
    this.#chunks = [this.#received];
  }

  #fail(reason) {
    this.#failure ??= reason;
    this.#waiting?.reject(new Error(this.#failure));
    this.#waiting = null;
  }
}

const operations = {
  connect({ host, port: number, timeoutMs }) {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ host, port: number, noDelay: true });
      socket.setTimeout(timeoutMs, () => socket.destroy(new Error("timed out")));
      socket.once("error", reject);
      socket.once("connect", () => {
        socket.setTimeout(0);
        socket.off("error", reject);
        connections.set(++lastNumber, new Connection(socket));
        resolve(lastNumber);
      });
    });
  },

  isFree({ host, port: number }) {
    return new Promise((resolve) => {
      const server = net.createServer();
      server.once("error", () => resolve(false));
      server.listen({ host, port: number }, () => server.close(() => resolve(true)));
    });
  },

  async exchange({ connection, bytes, expectsReply }) {
    const known = connections.get(connection);
    if (known === undefined) throw new Error("connection closed");
    return known.exchange(bytes, expectsReply);
  },

  async close({ connection }) {
    connections.get(connection)?.socket.destroy();
    connections.delete(connection);
  },
};

async function answer(request) {
  try {
    return { value: await operations[request.operation](request) };
  } catch (error) {
    return { error: String(error.message || error.code) };
  }
}

port.on("message", async (request) => {
  port.postMessage(await answer(request));
  Atomics.add(signal, 0, 1);
  Atomics.notify(signal, 0);
});
