// The types of the shell, how they are printed, and that they come back from a server as they went.
(function () {
  "use strict";

  const printed = [
    [1, "1"],
    [-0.5, "-0.5"],
    ['a"b\n', '"a\\"b\\n"'],
    [null, "null"],
    [undefined, "undefined"],
    [true, "true"],
    [NumberLong(7), "NumberLong(7)"],
    [NumberLong("9007199254740993"), 'NumberLong("9007199254740993")'],
    [NumberInt(3), "NumberInt(3)"],
    [NumberDecimal("1.10"), 'NumberDecimal("1.10")'],
    [ObjectId("0123456789abcdef01234567"), 'ObjectId("0123456789abcdef01234567")'],
    [ISODate("2001-02-03T04:05:06.789Z"), 'ISODate("2001-02-03T04:05:06.789Z")'],
    [Timestamp(5, 6), "Timestamp(5, 6)"],
    [BinData(2, "BAAAADEyMzQ="), 'BinData(2,"BAAAADEyMzQ=")'],
    [UUID("00112233-4455-6677-8899-aabbccddeeff"), 'UUID("00112233-4455-6677-8899-aabbccddeeff")'],
    [MinKey, '{ "$minKey" : 1 }'],
    [/x/gi, "/x/gi"],
    [[], "[ ]"],
    [{}, "{ }"],
    [[1, "two"], '[ 1, "two" ]'],
    [{ a: { b: [] } }, '{ "a" : { "b" : [ ] } }'],
  ];
  for (const [value, text] of printed) assert.eq(text, tojson(value));
  assert.eq('{ "a" : 1, "b" : [ 1, 2 ] }', tojsononeline({ a: 1, b: [1, 2] }));
  assert.eq('{\n\t"text" : "' + "x".repeat(80) + '"\n}', tojson({ text: "x".repeat(80) }));

  const coll = db.shell_values;
  coll.drop();
  const document = {
    _id: 1,
    long: NumberLong("9007199254740993"),
    decimal: NumberDecimal("2.50"),
    id: ObjectId(),
    date: new Date(0),
    stamp: Timestamp(9, 1),
    binary: BinData(0, "AQID"),
    uuid: UUID(),
    low: MinKey,
    high: MaxKey(),
    pattern: /^a/i,
    nothing: null,
    nested: [{ deep: [1.5, "x"] }],
  };
  assert.commandWorked(coll.insert(document));
  assert.eq(document, coll.findOne());
  assert.eq(tojson(document), tojson(coll.findOne()));
  const types = coll
    .aggregate([{ $project: { _id: { $type: "$_id" }, long: { $type: "$long" }, low: { $type: "$low" } } }])
    .next();
  assert.eq({ _id: "double", long: "long", low: "minKey" }, types, "a number of the shell is a double");
  assert.eq(1, coll.find({ _id: { $type: "double" } }).itcount());

  assert(coll.findOne().long instanceof NumberLong);
  assert.eq(12, NumberLong(5) + NumberInt(7));
  assert.eq("0123456789abcdef01234567", ObjectId("0123456789abcdef01234567").str);
  assert.lt(0, bsonWoCompare({ a: 2 }, { a: 1 }));
  assert.eq(0, bsonWoCompare({ a: NumberLong(1) }, { a: 1 }));
  assert(!bsonBinaryEqual({ a: NumberLong(1) }, { a: 1 }));
  const kindOf = (value) => Object.prototype.toString.call(value);
  assert.eq(["[object Timestamp]", "[object NumberLong]"], [Timestamp(1, 1), NumberLong(1)].map(kindOf));
  assert.throws(() => ObjectId("short"));
  assert.throws(() => ISODate("yesterday"));
  assert.throws(() => ISODate("0000-01-00"));
  const changed = Timestamp(1, 2);
  changed.i++;
  assert.eq(changed, Timestamp(1, 3));
  assert.eq(db.getSiblingDB("a|*b").x.getDB().y.getFullName(), "a|*b.y");
  assert.eq(ISODate("2001-03-02T01:01:00.124Z"), ISODate("2001-02-30 00:60:60.1235"), "fields are carried over");
  assert.eq(ISODate("0099-12-31T22:29:00Z"), ISODate("0100-01-01T00:08:00+0099"));

  const missing = { _id: "undefined", field: undefined, nested: [1, undefined, { inner: undefined }] };
  assert.commandWorked(coll.insert(missing));
  const typed = coll.findOne({ field: { $type: "undefined" }, "nested.inner": { $type: 6 } });
  assert(bsonBinaryEqual(missing, typed), () => tojson(typed));
  assert.commandWorked(coll.insert({ _id: "null", field: null }));
  assert.eq(0, coll.find({ _id: "null", field: { $type: "undefined" } }).itcount());

  assert.eq(5, Geo.distance([1, 1], { x: 4, y: 5 }));
  assert.close(Math.PI / 2, Geo.sphereDistance([0, 0], { lon: 90, lat: 0 }));
  assert.close(Math.PI / 3, Geo.sphereDistance([10, -30], [10, 30]));
})();
