"use strict";
// The old shell's functions for files and directories.
const crypto = require("crypto");
const fs = require("fs");
const os = require("os");
const path = require("path");

const md5 = (bytes) => crypto.createHash("md5").update(bytes).digest("hex");

const describe = (name) => {
  const found = fs.statSync(name);
  const isDirectory = found.isDirectory();
  return { name, baseName: path.basename(name), isDirectory, ...(isDirectory ? {} : { size: found.size }) };
};

module.exports = {
  pwd: () => process.cwd(),
  exists: (name) => fs.existsSync(name),
  read: (name) => fs.readFileSync(name, "utf8"),
  write: (name, text) => fs.writeFileSync(name, text),
  writePrivately: (name, text) => fs.writeFileSync(name, text, { mode: 0o600 }),
  append: (name, text) => fs.appendFileSync(name, text),
  copy: (from, to) => fs.copyFileSync(from, to),
  remove: (name) => fs.rmSync(name, { recursive: true, force: true }),
  makeDirectory: (name) => fs.mkdirSync(name, { recursive: true }),
  list: (directory) => fs.readdirSync(directory).map((name) => describe(path.join(directory, name))),
  md5OfText: (text) => md5(Buffer.from(text)),
  md5OfFile: (name) => md5(fs.readFileSync(name)),
  hostName: () => os.hostname(),
  libraries: path.join(__dirname, "..", "libs"),
  isAbsolute: path.isAbsolute,
  join: path.join,
  directoryOf: path.dirname,
  baseName: path.basename,
};
