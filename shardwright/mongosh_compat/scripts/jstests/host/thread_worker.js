"use strict";
// The thread of a parallel shell: `task` is {code} to run at the top level, or {source, bytes, latches} to call a
// function with the arguments in `bytes`.
const { workerData } = require("worker_threads");

const { createHost } = require("./host.js");
const { Realm } = require("./realm.js");
const { outcomeOf } = require("./suite.js");

const ENDED = 1;

function run({ settings, task }) {
  const host = createHost(settings);
  try {
    const realm = new Realm(host);
    const returned = task.code === undefined ? realm.call(task) : void host.evaluate(task.code, task.name);
    realm.finish();
    return { result: "pass", returned };
  } catch (error) {
    return outcomeOf(error, host, task.name ?? "");
  }
}

const { port, state } = workerData;
port.postMessage(run(workerData));
Atomics.store(state, 0, ENDED);
Atomics.notify(state, 0);
process.exit(0);
