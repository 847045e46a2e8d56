"use strict";
// Lone mongods. They are in mongosh's process group, so the runner stops those that a suite leaves.
const { spawn } = require("child_process");
const fs = require("fs");

// Start a mongod with these command-line options; it may not be ready yet.
function startMongod(program, dbpath, options) {
  fs.mkdirSync(dbpath, { recursive: true });
  const fixed = ["--bind_ip", "127.0.0.1", "--dbpath", dbpath, "--logpath", `${dbpath}/mongod.log`, "--nounixsocket"];
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

module.exports = { hasEnded, kill: (pid, signal) => process.kill(pid, signal), startMongod };
