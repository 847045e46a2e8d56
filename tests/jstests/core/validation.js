// Document validation and collMod.
(function () {
  "use strict";

  const coll = db.validation;
  coll.drop();
  assert.commandWorked(db.createCollection(coll.getName(), { validator: { a: { $type: "number" } } }));
  assert.commandWorked(coll.insert({ _id: 1, a: 5 }));
  assert.writeErrorWithCode(coll.insert({ _id: 2, a: "five" }), ErrorCodes.DocumentValidationFailure);
  assert.writeErrorWithCode(coll.update({ _id: 1 }, { $set: { a: "six" } }), ErrorCodes.DocumentValidationFailure);
  assert.throwsWithCode(() => coll.insertOne({ a: null }), ErrorCodes.DocumentValidationFailure);
  assert.commandWorked(coll.insert({ _id: 3, a: "let in" }, { bypassDocumentValidation: true }));

  assert.commandWorked(db.runCommand({ collMod: coll.getName(), validationLevel: "moderate" }));
  assert.commandWorked(coll.update({ _id: 3 }, { $set: { b: 1 } }), "an invalid document may stay invalid");
  assert.writeErrorWithCode(coll.update({ _id: 1 }, { $unset: { a: 1 } }), ErrorCodes.DocumentValidationFailure);

  assert.commandWorked(
    db.runCommand({
      collMod: coll.getName(),
      validator: { $jsonSchema: { required: ["c"] } },
      validationAction: "error",
      validationLevel: "strict",
    }),
  );
  const failure = coll.insert({ _id: 4 });
  assert.writeErrorWithCode(failure, ErrorCodes.DocumentValidationFailure);
  assert.eq("$jsonSchema", failure.getWriteError().errInfo.details.operatorName);
  assert.commandWorked(db.runCommand({ collMod: coll.getName(), validator: {}, validationLevel: "off" }));
  assert.commandWorked(coll.insert({ _id: 4 }));
  assert.commandFailedWithCode(
    db.runCommand({ collMod: "validation_missing", validator: {} }),
    ErrorCodes.NamespaceNotFound,
  );
})();
