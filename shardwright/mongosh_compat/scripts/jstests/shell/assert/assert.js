"use strict";
// `assert` and its members.
const { doassert } = require("../errors.js");
const { fail } = require("./failing.js");

function assert(value, message) {
  if (arguments.length > 2) doassert("Too many parameters to assert().");
  if (!value) fail("assert failed", message);
}

// `expression` is the source of a comparison, from which the old shell makes the message.
const automsg = (check) => (expression) => check(host.evaluate(`(${expression})`, "automsg"), expression);
assert.automsg = automsg((value, expression) => assert(value, expression));
assert._debug = false;
Object.assign(
  assert,
  require("./equality.js"),
  require("./order.js"),
  require("./members.js"),
  require("./waiting.js"),
  require("./throwing.js"),
  require("./commands.js"),
  require("./writes.js"),
);

module.exports = { assert };
