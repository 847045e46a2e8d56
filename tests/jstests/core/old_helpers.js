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
  assert.throws(() => coll.getPlanCache().clearPlansByQuery());

  jsTestLog("References");
  fresh({ _id: 1, other: DBRef(coll.getName(), 2) }, { _id: 2, far: DBRef(coll.getName(), 1, db.getName()) });
  assert.eq(2, coll.findOne({ _id: 1 }).other.fetch()._id);
  assert.eq(1, coll.findOne({ _id: 2 }).far.fetch()._id);
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

  jsTestLog("Completion");
  const completions = (text) => (shellAutocomplete(text), __autocomplete__);
  for (const each of ["getName(", "prototype", "hasOwnProperty", "old_helpers"])
    assert.contains(`db.${each}`, completions("db."));
  assert.eq(["ErrorCodes.BadValue"], completions("ErrorCodes.BadVal"));
  assert.contains("Array(", completions(""));

  jsTestLog("The log of a server");
  const connection = db.getMongo();
  const id = JSON.parse(checkLog.getGlobalLog(connection)[0]).id;
  checkLog.contains(connection, `"id":${id}`);
  checkLog.containsJson(connection, id, {});
  checkLog.containsWithAtLeastCount(connection, /"id"/, 1);
  assert(!checkLog.checkContainsOnce(connection, "no such text in the log"));
  assert(!checkLog.checkContainsOnceJson(connection, id, { noSuchAttribute: () => false }));
  assert.eq('{"a":"x","b":[1.0,{}]}', checkLog.formatAsJsonLogLine({ a: "x", b: [1, {}] }));
  assert.eq('{ a: "x", b: [ 1.0, {} ] }', checkLog.formatAsLogLine({ a: "x", b: [1, {}] }));
  assert.eq(7, checkLog.formatAsLogLine(7));
})();
