// Views: reads through them, views on views, and that they cannot be written.
(function () {
  "use strict";

  const base = db.views_base;
  base.drop();
  db.views_adults.drop();
  db.views_names.drop();
  assert.commandWorked(
    base.insert([
      { _id: 1, name: "Ada", age: 36 },
      { _id: 2, name: "Bo", age: 7 },
      { _id: 3, name: "Cy", age: 41 },
    ]),
  );

  assert.commandWorked(db.createView("views_adults", base.getName(), [{ $match: { age: { $gte: 18 } } }]));
  assert.commandWorked(db.createView("views_names", "views_adults", [{ $project: { _id: 0, name: 1 } }]));

  assert.eq(
    [1, 3],
    db.views_adults
      .find()
      .sort({ _id: 1 })
      .map((each) => each._id),
  );
  assert.eq([{ name: "Cy" }], db.views_names.find({ name: { $gt: "B" } }).toArray());
  assert.eq(2, db.views_adults.count());
  assert.eq(["Ada", "Cy"], db.views_names.distinct("name").sort());
  assert.eq(
    [{ _id: null, oldest: 41 }],
    db.views_adults.aggregate([{ $group: { _id: null, oldest: { $max: "$age" } } }]).toArray(),
  );

  const [info] = db.getCollectionInfos({ name: "views_adults" });
  assert.eq("view", info.type);
  assert.eq(base.getName(), info.options.viewOn);

  assert.writeErrorWithCode(db.views_adults.insert({ _id: 9 }), ErrorCodes.CommandNotSupportedOnView);
  assert.commandFailedWithCode(db.views_adults.createIndex({ age: 1 }), ErrorCodes.CommandNotSupportedOnView);
  assert.commandFailedWithCode(db.createView("views_adults", base.getName(), []), ErrorCodes.NamespaceExists);
  assert.commandFailedWithCode(
    db.createView("views_bad", base.getName(), [{ $out: "elsewhere" }]),
    ErrorCodes.OptionNotSupportedOnView,
  );

  assert.commandWorked(
    db.runCommand({ collMod: "views_adults", viewOn: base.getName(), pipeline: [{ $match: { age: { $gte: 40 } } }] }),
  );
  assert.eq(
    [3],
    db.views_adults.find().map((each) => each._id),
  );
  assert(db.views_adults.drop());
  assert.eq(0, db.views_names.find().itcount(), "a view on nothing is empty");
})();
