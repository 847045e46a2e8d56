// The `assert` used by the scripts in this folder: reports expected and actual values, and ends the script.
globalThis.assert = function (condition, message) {
  if (!condition) throw new Error(`assertion failed: ${message}`);
};

const canonical = (value) => EJSON.stringify(value, { relaxed: true });

assert.eq = function (found, expected, message = "") {
  assert(canonical(found) === canonical(expected), `${message}: found ${canonical(found)}, expected ${canonical(expected)}`);
};

assert.includes = function (text, part) {
  assert(String(text).includes(part), `expected to find ${JSON.stringify(part)} in\n${text}`);
};

// Runs `action`, which must fail with this error code, and returns the error.
assert.failsWith = function (action, code) {
  try {
    action();
  } catch (error) {
    assert.eq(error.code, code, `code of ${error.message}`);
    return error;
  }
  throw new Error(`assertion failed: expected error code ${code}, and nothing failed`);
};
