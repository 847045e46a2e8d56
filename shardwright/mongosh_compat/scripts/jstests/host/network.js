"use strict";
// Blocking exchanges over sockets that belong to a worker thread: this thread sleeps until the worker has an answer.
const path = require("path");
const { MessageChannel, Worker, receiveMessageOnPort } = require("worker_threads");

class Network {
  #signal = new Int32Array(new SharedArrayBuffer(4));
  #port;

  constructor() {
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    const worker = new Worker(path.join(__dirname, "network_worker.js"), {
      workerData: { port: port2, signal: this.#signal },
      transferList: [port2],
    });
    worker.unref();
    port1.unref();
  }

  // Open a connection; returns its number, or throws an Error with the reason.
  connect(host, port, timeoutMs) {
    return this.#call({ operation: "connect", host, port, timeoutMs });
  }

  // Whether a server could listen on this port.
  isFree(host, port) {
    return this.#call({ operation: "isFree", host, port });
  }

  // Send a message and return the reply, null if there is none to wait for.
  exchange(connection, bytes, { expectsReply = true } = {}) {
    return this.#call({ operation: "exchange", connection, bytes, expectsReply });
  }

  close(connection) {
    this.#call({ operation: "close", connection });
  }

  #call(request) {
    let seen = Atomics.load(this.#signal, 0);
    this.#port.postMessage(request);
    for (;;) {
      const received = receiveMessageOnPort(this.#port);
      if (received !== undefined) {
        const { error, value } = received.message;
        if (error !== undefined) throw new Error(error);
        return value;
      }
      Atomics.wait(this.#signal, 0, seen);
      seen = Atomics.load(this.#signal, 0);
    }
  }
}

module.exports = { Network };
