// The failCommand fail point of a router: error codes, closed connections, and how often it fires.
(function () {
  "use strict";

  load("jstests/libs/fail_point_util.js");

  const coll = db.fail_command;
  coll.drop();
  // Servers under test have test commands.
  assert.commandWorked(db.adminCommand({ configureFailPoint: "failCommand", mode: "off" }));

  let point = configureFailPoint(
    db,
    "failCommand",
    { failCommands: ["insert"], errorCode: ErrorCodes.InterruptedAtShutdown },
    { times: 1 },
  );
  assert.commandFailedWithCode(
    db.runCommand({ insert: coll.getName(), documents: [{}] }),
    ErrorCodes.InterruptedAtShutdown,
  );
  assert.commandWorked(coll.insert({ _id: 1 }));
  point.off();

  point = configureFailPoint(db, "failCommand", { failCommands: ["find"], closeConnection: true }, { times: 1 });
  const error = assert.throws(() => coll.findOne());
  assert(isNetworkError(error), () => `${error}`);
  assert.eq({ _id: 1 }, coll.findOne(), "the shell connects again");
  point.off();

  const concern = { failCommands: ["update"], writeConcernError: { code: 91, errmsg: "made up" } };
  point = configureFailPoint(db, "failCommand", concern, { times: 1 });
  const result = coll.update({ _id: 1 }, { $set: { a: 1 } });
  assert.eq(91, result.getWriteConcernError().code);
  assert.eq({ _id: 1, a: 1 }, coll.findOne());
  point.off();
})();
