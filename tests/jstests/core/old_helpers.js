// Helpers of the old shell, and how it differs from a driver.
(function () {
  "use strict";

  const coll = db.old_helpers;
  const fresh = (...documents) => {
    coll.drop();
    if (documents.length > 0) assert.commandWorked(coll.insert(documents));
  };

  jsTestLog("save sets the _id of the document itself");
  fresh();
  const saved = { a: 1 };
  coll.save(saved);
  assert(saved._id instanceof ObjectId);
  assert.docEq(saved, coll.findOne());
  coll.remove(saved._id);
  assert.eq(0, coll.count());

  jsTestLog("Positions and counts of a query");
  fresh(...Array.from({ length: 20 }, (_, _id) => ({ _id })));
  assert.eq(3, coll.find().sort({ _id: 1 }).arrayAccess(3)._id);
  assert.eq([20, 15], [coll.find().countReturn(), coll.find().skip(5).countReturn()]);
  assert.eq([2, 5], [coll.find().limit(2).countReturn(), coll.find().skip(15).limit(9).countReturn()]);
  assert.eq(20, coll.find({}, false).itcount(), "a false projection is none");

  assert.eq([34, 2], [coll.find().tailable()._options, coll.find().tailable(false)._options]);
  assert.eq(16 | 128, coll.find().noCursorTimeout().allowPartialResults()._options);
  assert.eq({ _id: 1 }, coll.find({ _id: 1 })._query);
  const modified = coll.find({ _id: 1 }).modifiers({ $hint: "_id_", $comment: "c" });
  assert.eq({ query: { _id: 1 }, $hint: "_id_", $comment: "c" }, modified._query);
  assert.eq(1, modified.itcount());

  jsTestLog("A bulk");
  fresh();
  const empty = coll.initializeOrderedBulkOp().execute();
  assert.eq(0, empty.nInserted, "a bulk may be empty");
  const replacing = coll.initializeOrderedBulkOp();
  replacing.find({ _id: 1 }).upsert().updateOne({ a: 1 });
  assert.eq({ index: 0, _id: 1 }, replacing.execute().toSingleResult().getUpsertedId());
  assert.eq(null, coll.update({ _id: 1 }, { a: 1 }, true).getUpsertedId());
  assert.eq(9, coll.update({ _id: 9 }, { a: 1 }, true)._id);
  const mixed = coll.initializeUnorderedBulkOp();
  mixed.insert({ _id: 2 });
  mixed.find({ _id: 2 }).update({ $set: { b: 1 } });
  mixed.find({ _id: 2 }).remove();
  mixed.insert({ _id: 2 });
  const result = mixed.execute();
  assert.eq([2, 1, 1], [result.nInserted, result.nMatched, result.nRemoved], "unordered operations keep their order");
  assert.throws(() => result.toSingleResult());
  const written = coll.bulkWrite([{ deleteOne: { filter: { _id: 2 } } }, { insertOne: { document: { _id: 3 } } }]);
  assert.eq({ 1: 3 }, written.insertedIds);
  assert(!("modifiedCount" in written));

  jsTestLog("Results without new, also of a command's reply");
  const reply = db.runCommand({ insert: coll.getName(), documents: [{ _id: 3 }] });
  assert(BulkWriteResult(reply) instanceof BulkWriteResult);
  assert.commandFailedWithCode(BulkWriteResult(reply), ErrorCodes.DuplicateKey);
  assert.eq(7, WriteError({ code: 7, index: 0, errmsg: "" }).code);
  assert.eq(WriteError, WriteError({ code: 7 }).constructor);

  jsTestLog("An unacknowledged write has an empty reply");
  const unacknowledged = { insert: coll.getName(), documents: [{ _id: 4 }], writeConcern: { w: 0 } };
  assert.eq({ ok: 1 }, db.runCommand(unacknowledged));
  assert.soon(() => coll.count({ _id: 4 }) === 1);
  assert.eq(0, coll.insert({ _id: 5 }, { writeConcern: { w: 0 } }).nInserted);
  assert.soon(() => coll.count({ _id: 5 }) === 1);
  assert.eq({ acknowledged: false }, coll.deleteOne({ _id: 5 }, { writeConcern: { w: 0 } }));
  assert.eq({ acknowledged: false }, coll.bulkWrite([{ insertOne: { document: { _id: 6 } } }], { w: 0 }));

  jsTestLog("Indexes");
  assert.eq("a_1_b.c_-1", coll._genIndexName({ a: 1, "b.c": -1 }));
  const spec = { ns: coll.getFullName(), key: { a: 1 }, name: "a_1" };
  assert.eq(spec, coll._indexSpec({ a: 1 }));
  assert.eq({ ...spec, name: "n" }, coll._indexSpec({ a: 1 }, ["n"]));
  assert.eq({ ...spec, unique: true, dropDups: true }, coll._indexSpec({ a: 1 }, [true, true]));
  assert.eq({ ...spec, sparse: true }, coll._indexSpec({ a: 1 }, { sparse: true }));
  assert.throws(() => coll._indexSpec({ a: 1 }, 7));
  assert.throws(() => coll.createIndex({ a: 1 }, {}, "majority", {}));
  assert.throws(() => coll.createIndexes([{ a: 1 }], {}, "majority", {}));
  coll.getPlanCache().clearPlansByQuery({ query: { a: 1 }, sort: {}, projection: {}, collation: { locale: "fr" } });
  coll.getPlanCache().clearPlansByQuery({ query: { a: 1 }, sort: {}, projection: {}, other: 1 });
  assert.throws(() => coll.getPlanCache().clearPlansByQuery());
  assert.eq("old_helpers", coll.getPlanCache().getName());

  jsTestLog("References");
  fresh({ _id: 1, other: DBRef(coll.getName(), 2) }, { _id: 2, far: DBRef(coll.getName(), 1, db.getName()) });
  assert.eq(2, coll.findOne({ _id: 1 }).other.fetch()._id);
  assert.eq(1, coll.findOne({ _id: 2 }).far.fetch()._id);
  assert.docEq('DBRef("c", 1)', DBRef("c", 1), "documents are compared by == first");
  const changed = DBRef("c", 1);
  changed.$id = 2;
  assert.eq(DBRef("c", 2), changed);
  assert.throws(() => DBRef("alone"));
  assert.throws(() => DBRef(coll.getName(), 1, 2));

  jsTestLog("Values");
  fresh({ _id: 1, a: Date.prototype }, { _id: 2, a: RegExp.prototype }, { _id: 3, a: BinData(4, "AQID") });
  assert.eq(
    [1, 2, 3],
    ["date", "regex", "binData"].map((type) => coll.findOne({ a: { $type: type } })._id),
  );
  assert.eq(BinData(4, "AQID"), coll.findOne({ _id: 3 }).a, "a short value of the UUID subtype");
  assert(bsonBinaryEqual({ _id: 1, a: 2 }, { a: 2, _id: 1 }), "the _id comes first");
  const nested = (depth) => (depth === 0 ? 1 : { a: nested(depth - 1) });
  assert.eq(149 * 8 + 8, Object.bsonsize(nested(149)));
  assert.throws(() => Object.bsonsize(nested(150)));

  const explained = [];
  coll.explain().find().forEach((each) => explained.push(each.ok));
  assert.eq([1], explained);

  assert(!testingReplication, "a suite does not test replication by itself");

  jsTestLog("Numbers");
  const throwsText = (action, text) => assert.eq(text, assert.throws(action).message);
  const tooLarge = "number passed to NumberLong must be representable as an int64_t";
  for (const value of [NaN, 2 ** 63, -(2 ** 63) - 2048]) throwsText(() => NumberLong(value), tooLarge);
  for (const text of ["", "y", "9223372036854775808"])
    throwsText(() => NumberLong(text), "could not convert string to long long");
  assert.eq(NumberLong("-9223372036854775808"), NumberLong(-(2 ** 63)));
  assert.eq(2 ** 32 + 2, NumberLong(0, 1, 2).toNumber());
  assert.throws(() => NumberLong(0, 1.5, 0));
  assert.throws(() => NumberLong("1", 0, 0));
  assert.gt(NumberLong(2).compare(NumberLong(1)), 0);
  assert.throws(() => NumberLong(2).compare(1));
  assert.throws(() => NumberLong(2).compare());
  const id = ObjectId();
  assert.eq(id, ObjectId(id.valueOf()));
  assert.eq.automsg("a", "eval(tojson(a))");

  jsTestLog("Write concerns");
  coll.setWriteConcern({ w: 1 });
  assert(coll.getWriteConcern() instanceof WriteConcern);
  assert.eq({ w: 1 }, coll.getWriteConcern().toJSON());
  assert.commandWorked(coll.insert({ _id: "concern" }));
  coll.unsetWriteConcern();
  assert.eq(undefined, coll.getWriteConcern());
  assert.eq({ w: "majority", wtimeout: 5 }, WriteConcern("majority", 5).toJSON());
  for (const bad of [{ w: -1 }, { wtimeout: "5" }, { j: 1 }]) assert.throws(() => WriteConcern(bad));
  assert.throws(() => WriteConcern({ w: 1 }, 5));

  jsTestLog("Addresses");
  for (const [address, start] of [
    [undefined, "Missing connection string"],
    [null, "Incorrect type"],
    [" ", "Empty connection string"],
    [":/test", "Empty host component"],
    ["/test", "Failed to parse mongodb"],
    ["mongodb://localhost:/test", "No digits"],
    ["mongodb://localhost:65536", "Port number 65536 out of range"],
    ["mongodb://::1:27017", "More than one ':' detected."],
  ])
    assert(assert.throws(() => connect(address)).message.startsWith(start), start);
  assert.throwsWithCode(() => connect("mongodb://localhost:1cat"), ErrorCodes.FailedToParse);

  jsTestLog("Texts");
  assert.eq('{\n\t"a" : {\n\t\t\n\t},\n\t"b" : [ ]\n}', tojson({ a: {}, b: [] }, "", false));
  assert.eq(["{ }", "{  }", "{\n\t\n}"], [tojson({}), tojsononeline({}), tojson({}, "", false)]);
  assert.eq('{ "a" : { "$numberLong" : "64" } }', tostrictjson({ a: NumberLong(64) }));
  for (const [value, text] of [
    [ObjectId("0123456789abcdef01234567"), '{"$oid":"0123456789abcdef01234567"}'],
    [BinData(0, "AQID"), '{"$binary":"AQID","$type":"00"}'],
    [Timestamp(2, 1), '{"$timestamp":{"t":2,"i":1}}'],
    [/^a/i, '{"$regex":"^a","$options":"i"}'],
    [MinKey, '{"$minKey":1}'],
    [NumberInt(5), "5"],
    [NumberDecimal(3.14), '{"$numberDecimal":"3.14000000000000"}'],
    [DBRef("c", 1), '{"$ref":"c","$id":1}'],
  ])
    assert.eq(text, JSON.stringify(value));
  assert.eq([true, 0], [ObjectId().isObjectId, Object.bsonsize(null)]);
  assert.eq("DBQuery: d.c -> { }", DBQuery(db.getMongo(), db, coll, "d.c", {}).toString());
  assert(coll.find() instanceof DBQuery);
  assert.eq(["a", "a.b"], [new DB(null, "a").toString(), new DBCollection(null, null, "b", "a.b").toString()]);
  assert.eq("47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", computeSHA256Block("").base64());
  assert.throws(() => coll.insertOne(1));
  const pipeline = [{ $replaceWith: {} }];
  assert.throws(() => coll.replaceOne({}, pipeline));
  assert.throws(() => coll.findOneAndReplace({}, pipeline));
  assert.throws(() => coll.bulkWrite([{ replaceOne: { filter: {}, replacement: pipeline } }]));
  fresh({ _id: "x", value: 1 }, { _id: "y", value: 2 });
  assert.eq({ x: 1, y: 2 }, coll.convertToSingleObject("value"));
  db.old_helpers.setSecondaryOk();
  assert(db.old_helpers.getSecondaryOk(), "a database remembers the settings of its collections");
  db.old_helpers.setSecondaryOk(false);
  assert.lt(bsonWoCompare(NumberDecimal("1.5"), NumberDecimal("2")), 0);
  assert.eq("", shellHelper("show", "tables ;"));
  assert.throws(() => shellHelper("show", "nothing"));

  jsTestLog("Stored functions");
  const scripts = db.getCollection("system.js");
  assert.commandWorked(scripts.insert({ _id: "oldHelpersTwice", value: (number) => 2 * number }));
  assert.commandWorked(scripts.insert({ _id: "oldHelpersValue", value: 7 }));
  db.loadServerScripts();
  assert.eq(14, oldHelpersTwice(oldHelpersValue));
  scripts.remove({ _id: /^oldHelpers/ });

  jsTestLog("Counters and arrays");
  assert.eq({ b: { total: 1 } }, getActiveCommands({ a: { total: NumberLong(0) }, b: { total: 1 } }));
  db.serverStatus();
  const { metrics } = db.serverStatus();
  assert.gt(metrics.commands.serverStatus.total, 0);
  assert(!("shutdown" in metrics.commands), "shutdown has not run");
  assert.eq([1, 2], Array.sort([2, 1]));
  assert.eq([2, 4], Array.map([1, 2], (each) => 2 * each));

  jsTestLog("Times and versions");
  const opTime = (seconds, t) => ({ ts: Timestamp(seconds, 1), t });
  assert.eq([-1, 0], [rs.compareOpTimes(opTime(3, 1), opTime(2, 2)), rs.compareOpTimes(opTime(3, 1), opTime(3, 1))]);
  assert.eq(1, rs.compareOpTimes(opTime(3, 1), opTime(2, 1)));

  jsTestLog("Completion");
  const completions = (text) => (shellAutocomplete(text), __autocomplete__);
  for (const each of ["getName(", "prototype", "hasOwnProperty", "old_helpers"])
    assert.contains(`db.${each}`, completions("db."));
  assert.eq(["ErrorCodes.BadValue"], completions("ErrorCodes.BadVal"));
  assert.contains("Array(", completions(""));

  jsTestLog("The log of a server");
  const connection = db.getMongo();
  const logId = JSON.parse(checkLog.getGlobalLog(connection)[0]).id;
  checkLog.contains(connection, `"id":${logId}`);
  checkLog.containsJson(connection, logId, {});
  checkLog.containsWithAtLeastCount(connection, /"id"/, 1);
  assert(!checkLog.checkContainsOnce(connection, "no such text in the log"));
  assert(!checkLog.checkContainsOnceJson(connection, logId, { noSuchAttribute: () => false }));
  assert.eq('{"a":"x","b":[1.0,{}]}', checkLog.formatAsJsonLogLine({ a: "x", b: [1, {}] }));
  assert.eq('{ a: "x", b: [ 1.0, {} ] }', checkLog.formatAsLogLine({ a: "x", b: [1, {}] }));
  assert.eq(7, checkLog.formatAsLogLine(7));
})();
