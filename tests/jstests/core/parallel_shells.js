// Shells and threads that run beside the suite.
(function () {
  "use strict";

  load("jstests/libs/parallel_shell_helpers.js");
  load("jstests/libs/parallelTester.js");

  const coll = db.parallel_shells;
  coll.drop();

  const awaitInserts = startParallelShell(() => {
    for (let i = 0; i < 50; i++) assert.commandWorked(db.parallel_shells.insert({ from: "shell", i }));
  });
  const awaitArguments = startParallelShell(
    funWithArgs(
      function (name, document) {
        assert.commandWorked(db.getCollection(name).insert(document));
      },
      coll.getName(),
      { from: "arguments", id: ObjectId() },
    ),
  );
  for (let i = 0; i < 50; i++) assert.commandWorked(coll.insert({ from: "suite", i }));
  awaitInserts();
  awaitArguments();
  assert.eq(50, coll.count({ from: "shell" }));
  assert.eq(50, coll.count({ from: "suite" }));
  assert(coll.findOne({ from: "arguments" }).id instanceof ObjectId);

  jsTestLog("A shell that fails is noticed, unless the suite looks for itself");
  const awaitFailure = startParallelShell("assert.eq(1, 2, 'meant to fail');");
  assert.neq(0, awaitFailure({ checkExitSuccess: false }));
  assert.throws(startParallelShell("throw new Error('meant to fail');"));

  const address = db.getMongo().host;
  const started = new CountDownLatch(2);
  const threads = [1, 2].map(
    (number) =>
      new Thread(
        (host, latch, value) => {
          const target = new Mongo(host).getDB("test").parallel_shells;
          latch.countDown();
          latch.await();
          assert.commandWorked(target.insert({ from: "thread", value }));
          return { doubled: value * 2 };
        },
        address,
        started,
        number,
      ),
  );
  threads.forEach((each) => each.start());
  assert.eq(
    [2, 4],
    threads.map((each) => each.returnData().doubled),
  );
  assert.eq(2, coll.count({ from: "thread" }));
})();
