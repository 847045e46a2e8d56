"use strict";
// Values as the old shell prints them.
const BSON = require("bson");

const LINE_LENGTH_MAX = 80;

const ESCAPES = { '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const quoted = (text) => `"${text.replace(/["\\\u0000-\u001f]/g, (each) => ESCAPES[each] ?? hexEscape(each))}"`;
const hexEscape = (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;

// `indent` is the indentation of the line it stands on; `isOneLine` true never breaks lines, undefined when it is short.
function tojson(value, indent = "", isOneLine = undefined) {
  switch (typeof value) {
    case "string":
      return quoted(value);
    case "function":
      return typeof value.tojson === "function" ? value.tojson() : String(value);
    case "object":
      return value === null ? "null" : objectText(value, indent, isOneLine);
    case "number":
      return Object.is(value, -0) ? "-0" : String(value);
    default:
      return String(value);
  }
}

function objectText(value, indent, isOneLine) {
  const text = nested(value, indent, isOneLine === true);
  const isShort = isOneLine === undefined && indent === "" && text.length < LINE_LENGTH_MAX;
  return isShort ? text.replace(/[\t\r\n]+/gm, " ") : text;
}

function nested(value, indent, isOneLine) {
  if (value instanceof Error) return String(value);
  if (value instanceof Date) return dateText(value);
  if (value instanceof RegExp) return String(value);
  if (typeof value.tojson === "function") return value.tojson(indent, isOneLine);
  if (value instanceof BSON.DBRef) return dbRefText(value);
  if (value instanceof BSON.Code) return codeText(value, indent, isOneLine);
  if (Array.isArray(value)) return block("[", "]", value, (each) => each, indent, isOneLine);
  const entries = Object.keys(value).map((name) => [name, value[name]]);
  return block(
    "{",
    "}",
    entries,
    (entry) => entry[1],
    indent,
    isOneLine,
    (entry) => `${quoted(entry[0])} : `,
  );
}

function block(open, close, items, valueOf, indent, isOneLine, prefix = () => "") {
  const [lineEnd, inner] = isOneLine ? [" ", ""] : ["\n", `${indent}\t`];
  // The old shell leaves an empty line in an empty document, but none in an empty array.
  if (items.length === 0) return open === "[" ? "[ ]" : `{${lineEnd}${inner}${lineEnd}${isOneLine ? "" : indent}}`;
  const lines = Array.from(items, (item) => inner + prefix(item) + inside(valueOf(item), inner, isOneLine));
  return open + lineEnd + lines.join(`,${lineEnd}`) + lineEnd + (isOneLine ? "" : indent) + close;
}

const inside = (value, indent, isOneLine) =>
  typeof value === "object" && value !== null ? nested(value, indent, isOneLine) : tojson(value);

function dateText(date) {
  if (Number.isNaN(date.getTime())) return "ISODate(NaN)";
  const text = date.toISOString();
  return `ISODate("${text.endsWith(".000Z") ? text.replace(".000Z", "Z") : text}")`;
}

function dbRefText(value) {
  const database = value.db ? `, ${quoted(value.db)}` : "";
  return `DBRef(${quoted(value.collection)}, ${tojson(value.oid)}${database})`;
}

const codeText = (value, indent, isOneLine) =>
  nested({ code: String(value.code), ...(value.scope ? { scope: value.scope } : {}) }, indent, isOneLine);

const tojsononeline = (value) => tojson(value, "", true);
const tostrictjson = (value) => tojsononeline(JSON.parse(JSON.stringify(value)));
const tojsonObject = (value, indent, isOneLine) => tojson(value, indent, isOneLine);

module.exports = { tojson, tojsononeline, tojsonObject, tostrictjson };
