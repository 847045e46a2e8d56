// The members of `assert`: each holds where it should and throws where it should not.
(function () {
  "use strict";

  const holds = (action) => assert.doesNotThrow(action);
  const fails = (action, part) => {
    const error = assert.throws(action, [], `should have failed: ${action}`);
    if (part !== undefined) assert.includes(error.message, part);
  };

  holds(() => assert(1));
  fails(() => assert(0, "zero"), "zero");
  fails(() => assert(false, () => "made when needed"), "made when needed");

  holds(() => assert.eq({ a: [1, NumberLong(2)] }, { a: [1, 2] }));
  fails(() => assert.eq({ a: 1, b: 2 }, { b: 2, a: 1 }), "not equal");
  holds(() => assert.neq("1", 2));
  fails(() => assert.neq(NumberInt(3), 3));
  holds(() => assert.docEq({ a: 1, b: { c: 1, d: 2 } }, { b: { d: 2, c: 1 }, a: 1 }));
  fails(() => assert.docEq({ a: 1 }, { a: 2 }));
  holds(() => assert.setEq(new Set([1, 2]), new Set([2, 1])));
  fails(() => assert.setEq(new Set([1]), new Set([2])));
  holds(() => assert.sameMembers([{ a: 1 }, { b: 1 }], [{ b: 1 }, { a: 1 }]));
  fails(() => assert.sameMembers([1, 1, 2], [1, 2, 2]));
  holds(() => assert.fuzzySameMembers([{ x: 0.1 + 0.2 }], [{ x: 0.3 }], ["x"]));

  holds(() => assert.lt(1, 2));
  fails(() => assert.lt(2, 2), "is not less than");
  holds(() => assert.lte(Timestamp(1, 1), Timestamp(1, 1)));
  fails(() => assert.gt(NumberLong(1), NumberLong(2)));
  holds(() => assert.gte(ISODate("2021-01-01"), ISODate("2020-01-01")));
  holds(() => assert.between(1, 1, 2));
  fails(() => assert.betweenEx(1, 1, 2));
  holds(() => assert.close(1 / 3, 0.33333));
  fails(() => assert.close(1, 1.1));
  holds(() => assert.closeWithinMS(ISODate("2020-01-01T00:00:00Z"), ISODate("2020-01-01T00:00:00.500Z")));

  holds(() => assert.contains(2, [1, 2]));
  fails(() => assert.contains({ a: 1 }, [{ a: 2 }]));
  holds(() => assert.doesNotContain(3, [1, 2]));
  holds(() => assert.containsPrefix("ab", ["xy", "abc"]));
  holds(() => assert.includes("a long text", "long"));
  holds(() => assert.hasFields({ a: 1, b: 2 }, ["a"]));
  fails(() => assert.hasFields({ a: 1 }, ["b"]));
  holds(() => assert.isnull(null));
  fails(() => assert.isnull(0));

  let calls = 0;
  holds(() => assert.soon(() => ++calls === 3, "never", 5000, 1));
  fails(() => assert.soon(() => false, "too late", 20, 5), "too late");
  holds(() =>
    assert.soonNoExcept(
      () => {
        if (++calls < 6) throw new Error("not yet");
        return true;
      },
      "never",
      5000,
      1,
    ),
  );
  calls = 0;
  fails(
    () =>
      assert.retry(
        () => {
          calls++;
          return false;
        },
        "gave up",
        3,
        0,
      ),
    "gave up",
  );
  assert.eq(3, calls);
  assert.eq(
    "value",
    assert.time(() => "value"),
  );

  holds(() =>
    assert.throws(() => {
      throw new Error("x");
    }),
  );
  fails(() => assert.throws(() => 1), "did not throw");
  holds(() =>
    assert.throwsWithCode(() => {
      throw Object.assign(new Error("x"), { code: 5 });
    }, [4, 5]),
  );
  fails(() =>
    assert.throwsWithCode(() => {
      throw Object.assign(new Error("x"), { code: 5 });
    }, 6),
  );
  assert.eq(
    7,
    assert.doesNotThrow((a, b) => a + b, [3, 4]),
  );
  fails(
    () =>
      assert.doesNotThrow(() => {
        throw new Error("unwanted");
      }),
    "unwanted",
  );

  holds(() => assert.commandWorked({ ok: 1 }));
  fails(() => assert.commandWorked({ ok: 0, code: 59, errmsg: "no such thing" }), "no such thing");
  fails(() => assert.commandWorked({ ok: 1, writeErrors: [{ code: 1, errmsg: "inner" }] }), "inner");
  holds(() => assert.commandWorkedIgnoringWriteErrors({ ok: 1, writeErrors: [{ code: 1, errmsg: "inner" }] }));
  fails(() => assert.commandWorked({ ok: 1, writeConcernError: { code: 64, errmsg: "waited" } }), "waited");
  holds(() =>
    assert.commandWorkedIgnoringWriteConcernErrors({ ok: 1, writeConcernError: { code: 64, errmsg: "waited" } }),
  );
  holds(() => assert.commandFailed({ ok: 0, code: 1, errmsg: "" }));
  fails(() => assert.commandFailed({ ok: 1 }));
  holds(() => assert.commandFailedWithCode({ ok: 0, code: 26, errmsg: "" }, [1, ErrorCodes.NamespaceNotFound]));
  fails(() => assert.commandFailedWithCode({ ok: 0, code: 26, errmsg: "" }, 27));
  holds(() => assert.commandWorkedOrFailedWithCode({ ok: 0, code: 3, errmsg: "" }, 3));
  const error = assert.throws(() => assert.commandWorked({ ok: 0, code: 77, codeName: "SeventySeven", errmsg: "" }));
  assert.eq(77, error.code);

  const members = [
    ...["adminCommandWorkedAllowingNetworkError", "automsg", "between", "betweenEx", "betweenIn", "close"],
    ...["closeWithinMS", "commandFailed", "commandFailedWithCode", "commandWorked"],
    ...["commandWorkedIgnoringWriteConcernErrors", "commandWorkedIgnoringWriteErrors"],
    ...["commandWorkedIgnoringWriteErrorsAndWriteConcernErrors", "commandWorkedOrFailedWithCode", "contains"],
    ...["containsPrefix", "docEq", "doesNotContain", "doesNotThrow", "dropExceptionsWithCode", "eq"],
    ...["fuzzySameMembers", "gleError", "gleErrorCode", "gleOK", "gleSuccess", "gt", "gte", "hasFields", "includes"],
    ...["isnull", "lt", "lte", "neq", "noAPIParams", "retry", "retryNoExcept", "sameMembers", "setEq", "soon"],
    ...["soonNoExcept", "soonRetryOnAcceptableErrors", "throws", "throwsWithCode", "time", "writeError"],
    ...["writeErrorWithCode", "writeOK"],
  ];
  for (const name of members) assert.eq("function", typeof assert[name], name);
  for (const each of [assert.eq, assert.neq, assert.throws, assert.doesNotThrow])
    assert.eq("function", typeof each.automsg);

  holds(() => assert.automsg("1 < 2"));
  fails(() => assert.automsg("2 < 1"), "2 < 1");
  holds(() => assert.eq.automsg("1 + 1", "2"));
  fails(() => assert.neq.automsg("1 + 1", "2"), "1 + 1");
  holds(() => assert.betweenIn(1, 2, 2));
  fails(() => assert.betweenIn(1, 3, 2), "is not between");
  holds(() => assert.docContains({ a: 1, b: { c: 2 } }, { b: { c: 2 } }));
  fails(() => assert.docContains({ a: 1 }, { a: 2 }));

  calls = 0;
  const failsTwice = (error) => () => {
    if (++calls < 3) throw error;
    return true;
  };
  holds(() => assert.retryNoExcept(failsTwice(new Error("not yet")), "gave up", 3, 0));
  calls = 0;
  fails(() => assert.retryNoExcept(failsTwice(new Error("not yet")), "gave up", 2, 0), "gave up");
  calls = 0;
  const unreachable = Object.assign(new Error("network error"), { code: ErrorCodes.HostUnreachable });
  holds(() => assert.soonRetryOnNetworkErrors(failsTwice(unreachable), "never", 5000, 1));
  const unexpected = Object.assign(new Error("x"), { code: ErrorCodes.NamespaceNotFound });
  calls = 0;
  fails(() => assert.soonRetryOnNetworkErrors(failsTwice(unexpected), "never", 5000, 1), "x");
  calls = 0;
  const acceptable = ErrorCodes.NamespaceNotFound;
  holds(() => assert.soonRetryOnAcceptableErrors(failsTwice(unexpected), acceptable, "never", 5000, 1));

  const throwing = (code) => () => {
    throw Object.assign(new Error("x"), { code });
  };
  const dropped = (error) => `dropped ${error.code}`;
  assert.eq(
    3,
    assert.dropExceptionsWithCode(() => 3, 5, dropped),
  );
  assert.eq("dropped 5", assert.dropExceptionsWithCode(throwing(5), [4, 5], dropped));
  assert.throwsWithCode(() => assert.dropExceptionsWithCode(throwing(6), [4, 5], dropped), 6);
  fails(() => assert.dropExceptionsWithCode(throwing(6), 6), "3rd argument must be a function");

  const both = { ok: 1, writeErrors: [{ code: 1, errmsg: "" }], writeConcernError: { code: 64, errmsg: "" } };
  holds(() => assert.commandWorkedIgnoringWriteErrorsAndWriteConcernErrors(both));
  fails(() => assert.commandWorkedIgnoringWriteErrorsAndWriteConcernErrors({ ok: 0, code: 1, errmsg: "" }));
  holds(() => assert.commandFailedWithCode({ ok: 0, code: 26, errmsg: "" }, assert._kAnyErrorCode));
  fails(() => assert.commandFailedWithCode({ ok: 1 }, assert._kAnyErrorCode));
  holds(() => assert.adminCommandWorkedAllowingNetworkError(db.getMongo(), { ping: 1 }));
  fails(() => assert.adminCommandWorkedAllowingNetworkError(db.getMongo(), { noSuchCommand: 1 }));
  holds(() => assert.noAPIParams(undefined));
  holds(() => assert.noAPIParams({ batchSize: 2 }));
  for (const name of ["apiVersion", "apiStrict", "apiDeprecationErrors"])
    fails(() => assert.noAPIParams({ [name]: 1 }), "API parameters are not allowed");
})();
