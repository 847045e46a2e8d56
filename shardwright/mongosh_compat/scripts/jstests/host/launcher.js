"use strict";
// The `shardwright` command, run to its end. Clusters are below the suite's own directory, where the runner finds what is
// left of them.
const { spawnSync } = require("child_process");
const path = require("path");

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

  // Run a command on a cluster and return its standard output; throws an Error with what it printed if it fails.
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
