// Errors of commands: their codes, their names, and what the connection can do afterwards.
(function () {
  "use strict";

  const coll = db.command_errors;
  coll.drop();
  assert.commandWorked(coll.insert({ _id: 1, a: "text" }));

  const cases = [
    [{ noSuchCommand: 1 }, ErrorCodes.CommandNotFound],
    [{ find: 5 }, [ErrorCodes.BadValue, ErrorCodes.InvalidNamespace]],
    [{ find: "" }, ErrorCodes.InvalidNamespace],
    [{ find: coll.getName(), noSuchField: 1 }, 40415],
    [{ find: coll.getName(), filter: "a" }, ErrorCodes.TypeMismatch],
    [{ find: coll.getName(), filter: { a: { $bogus: 1 } } }, ErrorCodes.BadValue],
    [{ find: coll.getName(), sort: { a: "up" } }, 15974],
    [{ insert: coll.getName(), documents: [] }, [ErrorCodes.InvalidLength, ErrorCodes.BadValue]],
    [{ insert: coll.getName() }, 40414],
    [{ update: coll.getName(), updates: [{ q: {} }] }, 40414],
    [{ delete: coll.getName(), deletes: [{ q: {}, limit: 5 }] }, ErrorCodes.FailedToParse],
    [{ count: coll.getName(), query: { $where: 5 } }, ErrorCodes.BadValue],
    [{ insert: coll.getName(), documents: [{}], writeConcern: { w: -3 } }, ErrorCodes.FailedToParse],
    [{ getMore: NumberLong(1), collection: coll.getName() }, ErrorCodes.CursorNotFound],
    [{ create: "bad$name" }, ErrorCodes.InvalidNamespace],
  ];
  for (const [command, code] of cases) {
    const reply = assert.commandFailedWithCode(db.runCommand(command), code, () => tojson(command));
    assert.hasFields(reply, ["errmsg", "code", "codeName"], tojson(command));
    assert.eq(0, reply.ok);
    if (reply.code in ErrorCodeStrings) assert.eq(ErrorCodeStrings[reply.code], reply.codeName);
  }

  const error = assert.throws(() => coll.find({ a: { $bogus: 1 } }).itcount());
  assert.eq(ErrorCodes.BadValue, error.code);
  assert.includes(error.message, "$bogus");
  assert.throws(() => db.getSiblingDB("bad name"));
  assert.commandFailedWithCode(db.runCommand({ listShards: 1 }), ErrorCodes.Unauthorized);
  assert.eq({ _id: 1, a: "text" }, coll.findOne(), "the connection still works");
})();
