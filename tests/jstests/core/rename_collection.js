// Renaming collections: over others, back, and where it is refused.
(function () {
  "use strict";

  const from = db.rename_from;
  const to = db.rename_to;
  from.drop();
  to.drop();
  assert.commandWorked(
    from.insert([
      { _id: 1, a: 1 },
      { _id: 2, a: 2 },
    ]),
  );
  assert.commandWorked(from.createIndex({ a: 1 }));

  assert.commandWorked(from.renameCollection(to.getName()));
  assert.eq(0, from.count());
  assert.eq(2, to.count());
  assert.sameMembers(
    ["_id_", "a_1"],
    to.getIndexes().map((each) => each.name),
    "indexes go with it",
  );

  assert.commandWorked(from.insert({ _id: 9 }));
  assert.commandFailedWithCode(from.renameCollection(to.getName()), ErrorCodes.NamespaceExists);
  assert.commandWorked(from.renameCollection(to.getName(), true));
  assert.eq([{ _id: 9 }], to.find().toArray());

  assert.commandWorked(to.renameCollection({ to: from.getName() }));
  assert.commandWorked(from.renameCollection({ to: to.getName(), dropTarget: true }));
  assert.throws(() => to.renameCollection({ dropTarget: true }));

  assert.commandFailedWithCode(from.renameCollection(to.getName(), true), ErrorCodes.NamespaceNotFound);
  assert.commandFailedWithCode(to.renameCollection(to.getName()), ErrorCodes.IllegalOperation);
  assert.commandFailedWithCode(to.renameCollection("bad$name"), [
    ErrorCodes.InvalidNamespace,
    ErrorCodes.IllegalOperation,
  ]);
  assert.commandFailedWithCode(
    db.runCommand({ renameCollection: to.getFullName(), to: "x.y" }),
    ErrorCodes.Unauthorized,
  );
})();
