"use strict";
// A fresh V8 realm with the old shell's global names. Its modules run inside it, so that arrays, dates and errors are its
// own; suites run at its top level, unchanged and synchronously.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const SHELL = path.join(__dirname, "..", "shell");

class Realm {
  #context = vm.createContext({}, { name: "jstest" });
  #modules = new Map();
  #host;
  #shell;

  constructor(host) {
    this.#host = host;
    host.runFile = (file) => this.runFile(file);
    host.evaluate = (code, name) => vm.runInContext(code, this.#context, { filename: name, displayErrors: false });
    this.#shell = this.#require(path.join(SHELL, "globals.js"));
  }

  // Run a file at the top level.
  runFile(file) {
    const code = fs.readFileSync(file, "utf8");
    return new vm.Script(code, { filename: file }).runInContext(this.#context, { displayErrors: false });
  }

  // Call the function of a thread with its arguments; both are encoded.
  call({ source, bytes, latches }) {
    return this.#shell.callEncoded(source, bytes, latches);
  }

  // Close all open connections, as the old shell does at the end of a file.
  finish() {
    this.#shell.finish();
  }

  #require(file) {
    const known = this.#modules.get(file);
    if (known !== undefined) return known.exports;
    const module = { exports: {} };
    this.#modules.set(file, module);
    const names = ["module", "exports", "require", "host", "Buffer", "TextDecoder"];
    const body = vm.compileFunction(fs.readFileSync(file, "utf8"), names, {
      filename: file,
      parsingContext: this.#context,
    });
    const require = (name) =>
      this.#require(name === "bson" ? this.#host.bsonPath : path.join(path.dirname(file), name));
    body.call(module.exports, module, module.exports, require, this.#host, Buffer, TextDecoder);
    return module.exports;
  }
}

module.exports = { Realm };
