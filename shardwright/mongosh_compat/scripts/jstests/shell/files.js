"use strict";
// Files, and `load`.
const { HexData } = require("./bson_binary.js");
const { _getErrorWithCode } = require("./errors.js");

const files = host.files;
const loading = [];

// The places of a library: next to the file that loads it, below the directories above that file, the working
// directory, and the libraries that are part of this shell.
function* candidates(name) {
  if (files.isAbsolute(name)) return void (yield name);
  const current = loading.at(-1) ?? host.settings.file;
  for (
    let directory = files.directoryOf(current ?? files.join(files.pwd(), "x"));
    ;
    directory = files.directoryOf(directory)
  ) {
    yield files.join(directory, name);
    if (directory === files.directoryOf(directory)) break;
  }
  yield files.join(files.pwd(), name);
}

// Libraries that are built into the old shell's interpreter are not loaded from a suite's tree.
const OWN = ["parallelTester.js"];

function resolve(name) {
  const own = files.join(files.libraries, files.baseName(name));
  const isLibrary = /(^|\/)(libs|extras)\//.test(name);
  if (OWN.includes(files.baseName(name))) return own;
  for (const candidate of candidates(name)) if (files.exists(candidate)) return candidate;
  return isLibrary && files.exists(own) ? own : null;
}

function load(name) {
  const file = resolve(name);
  if (file === null) throw _getErrorWithCode({ code: 18749 }, `error loading js file: ${name}: no such file`);
  loading.push(file);
  try {
    host.runFile(file);
  } finally {
    loading.pop();
  }
  return true;
}

// The file that a suite names relative to the root of its tree; the name itself if there is none.
const locate = (name) => resolve(String(name)) ?? name;

module.exports = {
  load,
  locate,
  cat: (name) => files.read(locate(name)),
  pwd: () => files.pwd(),
  ls: (directory = ".") => files.list(directory).map((each) => each.name),
  listFiles: (directory = ".") => files.list(directory),
  mkdir: (name) => ({ exists: files.exists(name), created: files.makeDirectory(name) !== undefined }),
  pathExists: (name) => files.exists(name),
  fileExists: (name) => files.exists(name),
  removeFile: (name) => files.remove(name),
  resetDbpath: (name) => {
    files.remove(name);
    files.makeDirectory(name);
  },
  copyFile: (from, to) => files.copy(from, to),
  writeFile: (name, text) => files.write(name, text),
  appendFile: (name, text) => files.append(name, text),
  md5sumFile: (name) => files.md5OfFile(name),
  hex_md5: (text) => files.md5OfText(text),
  computeSHA256Block: (text) => HexData(0, host.hashes.digest("sha256", text).toString("hex")),
  getHostName: () => files.hostName(),
  hostname: () => files.hostName(),
};
