"use strict";
// `WriteConcern(document)` or `WriteConcern(w, wtimeout, j)`: a write concern that collections inherit.
const { tojson } = require("./tojson.js");

const CHECKS = {
  w: (value) => typeof value === "string" || (typeof value === "number" && value >= 0),
  wtimeout: (value) => typeof value === "number" && value >= 0,
  j: (value) => typeof value === "boolean",
};

function WriteConcern(...parameters) {
  if (!new.target) return new WriteConcern(...parameters);
  const [first, wtimeout, j] = parameters;
  const isDocument = typeof first === "object" && first !== null;
  if (isDocument && parameters.length > 1) throw new Error("a write concern is one document, or up to three values");
  for (const [name, value] of Object.entries(isDocument ? first : { w: first, wtimeout, j })) {
    if (value === undefined) continue;
    if (CHECKS[name]?.(value) === false) throw new Error(`invalid ${name} of a write concern: ${tojson(value)}`);
    this[name] = value;
  }
}

for (const [name, value] of Object.entries({
  toJSON() {
    return { ...this };
  },
  tojson(indent, isOneLine) {
    return tojson(this.toJSON(), indent, isOneLine);
  },
  toString() {
    return `WriteConcern(${this.tojson()})`;
  },
})) {
  Object.defineProperty(WriteConcern.prototype, name, { value, writable: true, configurable: true });
}

// The parameters of `setWriteConcern` as a write concern.
const concernOf = (parameters) =>
  parameters[0] instanceof WriteConcern ? parameters[0] : new WriteConcern(...parameters);

module.exports = { WriteConcern, concernOf };
