// Functions of the shell that need no server.
(function () {
  "use strict";

  Random.setRandomSeed(42);
  const first = [Random.rand(), Random.randInt(100), Random.randInt(5, 6)];
  Random.setRandomSeed(42);
  assert.eq(first, [Random.rand(), Random.randInt(100), Random.randInt(5, 6)], "a seed repeats its numbers");
  for (let i = 0; i < 100; i++) {
    assert.between(0, Random.rand(), 1);
    assert.contains(Random.randInt(3), [0, 1, 2]);
  }

  assert.eq(6, Array.sum([1, 2, 3]));
  assert.eq(2, Array.avg([1, 2, 3]));
  assert(Array.contains([1, 2], 2));
  assert.eq([1, 2], Array.unique([1, 2, 1]));
  assert.sameMembers([1, 2, 3], Array.shuffle([1, 2, 3]));
  assert.eq({ a: 1, b: 2 }, Object.extend({ a: 1 }, { b: 2 }));
  assert.eq({ a: 2 }, Object.merge({ a: 1 }, { a: 2 }));
  assert.eq(Object.bsonsize({}), 5);
  assert.eq(Object.bsonsize([{}]), 13);
  assert.eq("007", (7).zeroPad(3));
  assert.eq("x", "  x".ltrim());
  assert.eq("shell_functions", jsTestName());
  assert.eq("shell_functions", jsTest.name());
  assert(TestData.testName.length > 0);
  assert.eq(hex_md5("hello"), "5d41402abc4b2a76b9719d911017c592");
  assert.neq("", getHostName());

  const before = Date.now();
  sleep(30);
  assert.gte(Date.now() - before, 29);
  assert.gt(
    Date.timeFunc(() => sleep(5), 2),
    8,
  );

  assert(load("../libs/twice.js"));
  assert.eq(8, twice(4), "a library beside the suites");
  assert.throws(() => load("no/such/file.js"));
  assert.eq(
    "ok",
    (() => {
      try {
        doassert("no");
      } catch (error) {
        return error.message === "no" ? "ok" : error.message;
      }
    })(),
  );
  assert(isNumber(5) && isString("x") && isObject({}));
  assert(() => false, "a function is true");

  const uri = new MongoURI("mongodb://ann:p%40ss@a:1,b/shop?replicaSet=rs&w=2");
  assert.eq(["ann", "p@ss", "shop", "rs"], [uri.user, uri.password, uri.database, uri.setName]);
  assert.eq(
    [
      { server: "a:1", host: "a", port: 1 },
      { server: "b:27017", host: "b", port: 27017 },
    ],
    uri.servers,
  );
  assert.eq({ replicaSet: "rs", w: "2" }, uri.options);
  assert.eq("rs", new MongoURI("rs/a:1,b:2").setName);
  assert.eq(5, Array.unique([...allocatePorts(4), allocatePort()]).length);
})();
