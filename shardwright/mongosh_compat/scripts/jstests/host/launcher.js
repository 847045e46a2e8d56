"use strict";
// Runs of the `shardwright` command. Clusters are below the suite's own directory, where the runner finds leftovers.
const { spawn, spawnSync } = require("child_process");
const fs = require("fs");
const path = require("path");

const { awaitEnd, kill } = require("./mongod.js");

const TIMEOUT_MS = 60_000;

// Whether a process is one of a cluster: the suite may have stopped it, and another process may have its pid now.
function isProcessOf(directory, pid) {
  try {
    return fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(directory);
  } catch {
    return false;
  }
}

// The processes in the pid files of a cluster. A process that a command has stopped has no pid file.
function recordedPids(directory) {
  const files = path.join(directory, "pids");
  return fs.readdirSync(files).map((name) => JSON.parse(fs.readFileSync(path.join(files, name), "utf8")).pid);
}

class Launcher {
  #settings;
  #clusters = 0;

  constructor(settings) {
    this.#settings = settings;
  }

  // A directory for a new cluster.
  newDirectory() {
    return path.join(this.#settings.directory, `cluster${this.#settings.threadId ?? ""}-${++this.#clusters}`);
  }

  // Start a cluster with these options of `up`; returns the document that describes it.
  up(directory, options) {
    const output = this.run(directory, ["up", "--detach", "--json", "--port", "0", ...options]);
    return JSON.parse(output);
  }

  // Start a daemon outside of a cluster with the launcher's interpreter; returns its pid. It may not be ready yet.
  startDaemon(name, words) {
    const [python] = this.#settings.launcher;
    const child = spawn(python, ["-P", "-m", `shardwright.${name}.main`, ...words], { stdio: "ignore" });
    child.unref();
    return child.pid;
  }

  // Kill a cluster and remove its files. Its data is not needed any more, so the order does not matter. This saves the
  // second that the command `down` takes to start.
  discard(directory) {
    const pids = recordedPids(directory).filter((pid) => isProcessOf(directory, pid));
    pids.forEach((pid) => kill(pid, "SIGKILL"));
    pids.forEach((pid) => awaitEnd(pid, TIMEOUT_MS));
    const { sockets } = JSON.parse(fs.readFileSync(path.join(directory, "cluster.json"), "utf8"));
    for (const each of [sockets, directory]) if (each) fs.rmSync(each, { recursive: true, force: true });
  }

  // Run a command on a cluster and return its standard output; throws an Error with its output if it fails.
  run(directory, [command, ...rest]) {
    const [program, ...first] = this.#settings.launcher;
    const done = spawnSync(program, [...first, command, ...rest, "--dir", directory], {
      encoding: "utf8",
      maxBuffer: 2 ** 26,
    });
    if (done.error) throw done.error;
    if (done.status !== 0) throw new Error(`shardwright ${command} failed: ${done.stderr || done.signal}`);
    return done.stdout;
  }
}

module.exports = { Launcher };
