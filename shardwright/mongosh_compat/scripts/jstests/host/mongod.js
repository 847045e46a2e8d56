"use strict";
// Mongods outside of clusters, and ending processes. Mongods are in mongosh's process group, so the runner stops any
// that a suite leaves running.
const { spawn } = require("child_process");
const fs = require("fs");

const POLL_MS = 5;

// Start a mongod with these command-line options; it may not be ready yet.
function startMongod(program, dbpath, options) {
  fs.mkdirSync(dbpath, { recursive: true });
  const fixed = ["--bind_ip", "127.0.0.1", "--dbpath", dbpath, "--logpath", `${dbpath}/mongod.log`, "--logappend"];
  if (!options.includes("--unixSocketPrefix")) fixed.push("--nounixsocket");
  const small = ["--wiredTigerCacheSizeGB", "0.25"];
  const child = spawn(program, [...fixed, ...small, ...options], { stdio: "ignore" });
  child.unref();
  return child.pid;
}

// Whether the process has ended; a child that this thread has not waited for counts as ended. A process whose first
// thread has ended keeps its sockets, and may accept connections, until the last one has.
function hasEnded(pid) {
  try {
    const status = fs.readFileSync(`/proc/${pid}/status`, "utf8");
    return /^State:\s+[ZX]/m.test(status) && !/^Threads:\s+([2-9]|\d\d)/m.test(status);
  } catch {
    return true;
  }
}

// Wait until all threads of a process have ended, even if it is not a child of this one.
function awaitEnd(pid, timeoutMs) {
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const deadline = Date.now() + timeoutMs;
  while (!hasEnded(pid)) {
    if (Date.now() > deadline) throw new Error(`process ${pid} does not end`);
    Atomics.wait(pause, 0, 0, POLL_MS);
  }
}

// Send a signal to a process that may have ended.
function kill(pid, signal) {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if (error.code !== "ESRCH") throw error; // there is no such process
  }
}

function end(pid, signal, timeoutMs) {
  kill(pid, signal);
  awaitEnd(pid, timeoutMs);
}

module.exports = { awaitEnd, end, hasEnded, kill, startMongod };
