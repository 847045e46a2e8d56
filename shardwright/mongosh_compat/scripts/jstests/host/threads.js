"use strict";
// Code of a suite that runs at the same time as the suite: a thread with a realm of its own.
const path = require("path");
const { MessageChannel, Worker, receiveMessageOnPort } = require("worker_threads");

const RUNNING = 0;

let lastThread = 0;

class HostThread {
  #state = new Int32Array(new SharedArrayBuffer(4));
  #port;
  #worker;
  #outcome = null;

  constructor(settings, task) {
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    this.#worker = new Worker(path.join(__dirname, "thread_worker.js"), {
      workerData: {
        settings: { ...settings, threadId: `${settings.threadId ?? ""}t${++lastThread}-` },
        task,
        port: port2,
        state: this.#state,
      },
      transferList: [port2],
    });
  }

  isRunning() {
    return Atomics.load(this.#state, 0) === RUNNING;
  }

  // Wait for its end; returns {result, message?, stack?, returned?} as `runSuite` does.
  join(timeoutMs) {
    if (this.#outcome !== null) return this.#outcome;
    if (Atomics.wait(this.#state, 0, RUNNING, timeoutMs) === "timed-out") {
      throw new Error(`a parallel shell did not end within ${timeoutMs} ms`);
    }
    this.#outcome = receiveMessageOnPort(this.#port).message;
    this.#worker.unref();
    return this.#outcome;
  }
}

const startThread = (settings, task) => new HostThread(settings, task);

module.exports = { startThread };
