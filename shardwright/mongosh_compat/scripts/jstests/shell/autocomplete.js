"use strict";
// `shellAutocomplete(text)`: stores the names that may follow the start of an expression in `__autocomplete__`.
// Functions end with a bracket, except for members of every object.
const COMMON = ["prototype", "hasOwnProperty"];

function shellAutocomplete(text) {
  const dot = text.lastIndexOf(".");
  const prefix = text.slice(0, dot + 1);
  const owner = dot < 0 ? globalThis : host.evaluate(`(${text.slice(0, dot)})`, "autocomplete");
  const names = [...new Set([...COMMON, ...namesOf(owner), ...collectionsIn(owner)])];
  globalThis.__autocomplete__ = names
    .map((name) => `${prefix}${name}${COMMON.includes(name) || typeof owner[name] !== "function" ? "" : "("}`)
    .filter((each) => each.startsWith(text))
    .sort();
}

function namesOf(value) {
  const names = [];
  for (let each = Object(value); each !== null; each = Object.getPrototypeOf(each))
    names.push(...Object.getOwnPropertyNames(each));
  return names.filter((name) => !name.startsWith("_"));
}

const collectionsIn = (owner) => (owner instanceof globalThis.DB ? owner.getCollectionNames() : []);

module.exports = { shellAutocomplete };
