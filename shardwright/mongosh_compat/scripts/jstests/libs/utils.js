// Comparing the results of aggregations, whose order does not matter.
var documentEq = (left, right) => bsonUnorderedFieldsCompare(left, right) === 0;
var orderedArrayEq = (left, right) =>
  left.length === right.length && left.every((each, index) => documentEq(each, right[index]));

function arrayEq(left, right, isVerbose = false, isEqual = documentEq) {
  const missing = [...right];
  const isSame =
    left.length === right.length &&
    left.every((each) => {
      const index = missing.findIndex((other) => isEqual(each, other));
      if (index >= 0) missing.splice(index, 1);
      return index >= 0;
    });
  if (!isSame && isVerbose) print(`${tojson(left)} != ${tojson(right)}`);
  return isSame;
}

var anyEq = (left, right) =>
  Array.isArray(left) && Array.isArray(right) ? arrayEq(left, right) : documentEq({ v: left }, { v: right });
var resultsEq = (left, right, isVerbose) => arrayEq(left, right, isVerbose);

function assertArrayEq({ actual, expected, extraErrorMsg = "" }) {
  assert(arrayEq(actual, expected), `actual=${tojson(actual)}, expected=${tojson(expected)}${extraErrorMsg}`);
}

function assertErrorCode(collection, pipeline, code, message = "", options = {}) {
  const stages = Array.isArray(pipeline) ? pipeline : [pipeline];
  const command = { aggregate: collection.getName(), pipeline: stages, cursor: {}, ...options };
  const reply = collection.getDB().runCommand(command);
  if (reply.ok !== 1) return assert.commandFailedWithCode(reply, code, message);
  const error = assert.throws(() => new DBCommandCursor(collection.getDB(), reply, 5).itcount(), [], message);
  assert.eq(code, error.code, message);
}
