// A library for suites.
function twice(value) {
  return 2 * value;
}
