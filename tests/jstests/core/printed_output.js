/**
 * What functions print can be captured; values are equal if they are printed alike; timestamps are ordered, and
 * error codes have categories.
 */
(function () {
  "use strict";

  const outer = print.captureAllOutput(() => {
    print("before");
    const inner = print.captureAllOutput((text) => print(text, 1), ["a\nb"]);
    assert.eq(["a", "b 1"], inner.output);
    print("after");
    return 5;
  });
  assert.eq({ output: ["before", "after"], result: 5 }, outer);
  const status = print.captureAllOutput(() => printShardingStatus()).output;
  assert.contains("  shards:", status);
  assert.contains("  databases:", status);

  assert.eq({ a: MinKey }, { a: MinKey() });
  assert.eq({ a: [NumberInt(1)] }, { a: [1] });
  assert.neq({ a: NumberLong(1) }, { a: NumberLong(2) });
  assert.neq({ a: 1 }, { a: "1" });
  assert.eq(-1, timestampCmp(Timestamp(1, 2), Timestamp(1, 3)));
  assert.eq(0, timestampCmp(Timestamp(1, 2), Timestamp(1, 2)));
  assert(ErrorCodes.isNetworkError(ErrorCodes.HostUnreachable) && ErrorCodes.isNetworkError("HostUnreachable"));
  assert(!ErrorCodes.isNetworkError(ErrorCodes.BadValue) && ErrorCodes.isInterruption(ErrorCodes.Interrupted));
  assert.eq(1, timestampCmp(Timestamp(2, 0), Timestamp(1, 3)));
})();
