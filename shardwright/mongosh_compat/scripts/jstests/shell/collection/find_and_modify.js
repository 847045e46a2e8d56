"use strict";
// findAndModify and the CRUD methods built on it.
const { _getErrorWithCode } = require("../errors.js");
const { tojson } = require("../tojson.js");

function run(collection, fields) {
  const reply = collection.getDB().runCommand({ findAndModify: collection.getName(), ...fields });
  if (reply.ok !== 1) throw _getErrorWithCode(reply, `findAndModifyFailed failed: ${tojson(reply)}`);
  return reply.value ?? null;
}

// The options of the CRUD methods as fields of the command.
function fieldsOf(collection, options) {
  const { projection, returnNewDocument, returnDocument, writeConcern, ...rest } = options;
  const fields = { ...rest, ...collection._writeConcernFields(options) };
  if (projection !== undefined) fields.fields = projection;
  if (returnNewDocument || returnDocument === "after") fields.new = true;
  return fields;
}

module.exports = {
  findAndModify(fields) {
    return run(this, { ...fields, ...this._writeConcernFields(fields) });
  },

  findOneAndDelete(filter, options = {}) {
    return run(this, { query: filter, remove: true, ...fieldsOf(this, options) });
  },

  findOneAndReplace(filter, replacement, options = {}) {
    if (Array.isArray(replacement) || Object.keys(replacement)[0]?.startsWith("$"))
      throw new Error("the replacement must not contain update operators");
    return run(this, { query: filter, update: replacement, ...fieldsOf(this, options) });
  },

  findOneAndUpdate(filter, update, options = {}) {
    if (!Array.isArray(update) && !Object.keys(update)[0]?.startsWith("$"))
      throw new Error("the update operation document must contain atomic operators");
    return run(this, { query: filter, update, ...fieldsOf(this, options) });
  },
};
