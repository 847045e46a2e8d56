"use strict";
// Code that runs at the same time as the suite: parallel shells and threads.
const { assert } = require("./assert/assert.js");
const BSON = require("bson");
const { fromBytes, toBytes } = require("./bson_codec.js");
const { tojson } = require("./tojson.js");

const JOIN_TIMEOUT_MS = 10 * 60 * 1000;

// Run a function or source in a shell that has `db` of the server at `port`; returns the function that waits for its
// end and returns its exit code.
function startParallelShell(code, port, noConnect = false) {
  const source = typeof code === "function" ? `(${code})();` : String(code);
  const address = port === undefined ? globalThis.db?.getMongo().host : `127.0.0.1:${port}`;
  const database = port === undefined ? globalThis.db?.getName() : "test";
  const connecting =
    noConnect || address === undefined ? "" : `var db = new Mongo(${tojson(address)}).getDB(${tojson(database)});`;
  const prelude = `TestData = Object.assign(TestData, ${JSON.stringify(plainTestData())});${connecting}`;
  const thread = host.startThread({ code: `${prelude}\n${source}`, name: "parallel shell" });
  return function join({ checkExitSuccess = true } = {}) {
    const outcome = thread.join(JOIN_TIMEOUT_MS);
    const exitCode = outcome.result === "pass" ? 0 : 1;
    if (exitCode !== 0) host.write(`parallel shell: ${outcome.message}\n${outcome.stack ?? ""}\n`);
    if (checkExitSuccess) assert.eq(0, exitCode, `encountered an error in the parallel shell: ${outcome.message}`);
    return exitCode;
  };
}

const plainTestData = () => JSON.parse(JSON.stringify({ ...globalThis.TestData, isMainTest: false }));

// The source of a call of `action` with these arguments.
const funWithArgs = (action, ...parameters) =>
  `(${action})(${parameters.map((each) => tojson(each, "", true)).join(", ")});`;

// A function that runs in its own thread, with arguments and a result that are BSON values.
class ThreadTask {
  constructor(action, ...parameters) {
    this._action = action;
    this._parameters = parameters;
  }

  start() {
    const latches = this._parameters.map((each) => (each instanceof Latch ? each._state : null));
    const plain = this._parameters.map((each) => (each instanceof Latch ? null : each));
    this._thread = host.startThread({
      source: String(this._action),
      bytes: toBytes({ parameters: plain }),
      latches,
      name: "thread",
    });
  }

  join() {
    this._outcome ??= this._thread.join(JOIN_TIMEOUT_MS);
    if (this._outcome.result !== "pass") host.write(`thread: ${this._outcome.message}\n${this._outcome.stack ?? ""}\n`);
  }

  hasFailed() {
    this.join();
    return this._outcome.result !== "pass";
  }

  returnData() {
    this.join();
    assert.eq("pass", this._outcome.result, `the thread failed: ${this._outcome.message}`);
    return fromBytes(Buffer.from(this._outcome.returned)).value;
  }
}

// The code of a thread: `bytes` has the arguments, the result is bytes too.
function callEncoded(source, bytes, latches) {
  const action = host.evaluate(`(${source})`, "thread");
  const parameters = fromBytes(Buffer.from(bytes)).parameters.map((each, index) =>
    latches[index] ? new Latch(latches[index]) : withFunctions(each),
  );
  const value = action(...parameters);
  return toBytes({ value: value ?? null });
}

const withFunctions = (value) => (value instanceof BSON.Code ? host.evaluate(`(${value.code})`, "thread") : value);

// Threads wait until it has been counted down to 0.
class Latch {
  constructor(state) {
    this._state = state;
  }

  await() {
    for (let count = this.getCount(); count > 0; count = this.getCount()) Atomics.wait(this._state, 0, count);
  }

  countDown() {
    if (Atomics.sub(this._state, 0, 1) > 0) Atomics.notify(this._state, 0);
  }

  getCount() {
    return Math.max(0, Atomics.load(this._state, 0));
  }
}

function Thread(...parameters) {
  return new ThreadTask(...parameters);
}
Thread.prototype = ThreadTask.prototype;

function CountDownLatch(count) {
  return new Latch(new Int32Array(new SharedArrayBuffer(4)).fill(count));
}
CountDownLatch.prototype = Latch.prototype;

module.exports = { CountDownLatch, Thread, callEncoded, funWithArgs, startParallelShell };
