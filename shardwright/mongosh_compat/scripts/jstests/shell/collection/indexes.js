"use strict";
// The methods of `DBCollection` for indexes.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");
const { DBCommandCursor } = require("./command_cursor.js");

const nameOf = (keys) =>
  Object.entries(keys)
    .map(([field, kind]) => `${field}_${Number.isFinite(Number(kind)) ? Number(kind) : kind}`)
    .join("_");

// An index by its keys and options. The old forms of options are a name, true for unique, or an array of a name and of
// booleans for unique and dropDups.
function specOf(keys, options) {
  const spec = { key: keys, name: nameOf(keys) };
  if (options === undefined || options === null || options === false) return spec;
  if (typeof options === "object" && !Array.isArray(options)) return { ...spec, ...options };
  const flags = ["unique", "dropDups"];
  for (const each of [options].flat()) {
    if (typeof each === "string") spec.name = each;
    else if (typeof each !== "boolean" || flags.length === 0) throw new Error(`can't handle: ${typeof each}`);
    else if (each) spec[flags.shift()] = true;
    else flags.shift();
  }
  return spec;
}

module.exports = {
  _genIndexName: nameOf,

  _indexSpec(keys, options) {
    return { ns: this._fullName, ...specOf(keys, options) };
  },

  createIndex(keys, options, commitQuorum) {
    if (arguments.length > 3) throw new Error("createIndex accepts up to 3 arguments");
    return this.createIndexes([keys], options, commitQuorum);
  },

  createIndexes(keysList, options, commitQuorum) {
    if (arguments.length > 3) throw new Error("createIndexes accepts up to 3 arguments");
    if (!Array.isArray(keysList)) throw new Error("createIndexes first argument should be an array");
    const indexes = keysList.map((keys) => specOf(keys, options));
    return this.runCommand({
      createIndexes: this._shortName,
      indexes,
      ...(commitQuorum !== undefined ? { commitQuorum } : {}),
    });
  },

  getIndexes() {
    const { reply, hostAndPort } = this._db._run({ listIndexes: this._shortName });
    if (reply.ok !== 1) {
      if (reply.codeName === "NamespaceNotFound") return [];
      throw _getErrorWithCode(reply, `listIndexes failed: ${tojson(reply)}`);
    }
    return new DBCommandCursor(this._db, reply, undefined, undefined, undefined, hostAndPort).toArray();
  },

  getIndexKeys() {
    return this.getIndexes().map((each) => each.key);
  },

  getIndexByName(name) {
    return this.getIndexes().find((each) => each.name === name) ?? null;
  },

  getIndexByKey(key) {
    return this.getIndexes().find((each) => tojson(each.key) === tojson(key)) ?? null;
  },

  dropIndex(index) {
    if (index === undefined) throw new Error("need an index name or key to drop");
    if (Array.isArray(index))
      throw new Error("the index to drop must be either the index name or the index specification document");
    if (index === "*") throw new Error("To drop indexes in the collection using '*', use db.collection.dropIndexes()");
    return this.runCommand({ dropIndexes: this._shortName, index });
  },

  dropIndexes(index = "*") {
    const reply = this.runCommand({ dropIndexes: this._shortName, index });
    if (reply.ok === 1 || /ns not found/.test(reply.errmsg)) return { ...reply, ok: 1 };
    throw _getErrorWithCode(reply, `error dropping indexes : ${tojson(reply)}`);
  },

  hideIndex(index) {
    return setHidden(this, index, true);
  },

  unhideIndex(index) {
    return setHidden(this, index, false);
  },

  reIndex() {
    return this.runCommand({ reIndex: this._shortName });
  },
};
module.exports.ensureIndex = module.exports.createIndex;
module.exports.getIndices = module.exports.getIndexes;
module.exports.getIndexSpecs = module.exports.getIndexes;

function setHidden(collection, index, hidden) {
  const by = typeof index === "string" ? { name: index } : { keyPattern: index };
  return collection.runCommand({ collMod: collection.getName(), index: { ...by, hidden } });
}
