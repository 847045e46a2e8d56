// Text, geospatial, hashed and wildcard indexes.
(function () {
  "use strict";

  const texts = db.text_and_geo_texts;
  texts.drop();
  assert.commandWorked(texts.createIndex({ body: "text" }));
  assert.commandWorked(
    texts.insert([
      { _id: 1, body: "a red boat" },
      { _id: 2, body: "a blue boat, boat" },
      { _id: 3, body: "a harbour" },
    ]),
  );
  assert.sameMembers(
    [1, 2],
    texts.find({ $text: { $search: "boats" } }).map((each) => each._id),
  );
  assert.eq(
    2,
    texts
      .find({ $text: { $search: "boat" } }, { score: { $meta: "textScore" } })
      .sort({ score: { $meta: "textScore" } })[0]._id,
  );
  assert.throwsWithCode(
    () => db.text_and_geo_none.find({ $text: { $search: "x" } }).itcount(),
    ErrorCodes.IndexNotFound,
  );

  const places = db.text_and_geo_places;
  places.drop();
  assert.commandWorked(places.createIndex({ at: "2dsphere" }));
  const point = (x, y) => ({ type: "Point", coordinates: [x, y] });
  assert.commandWorked(
    places.insert([
      { _id: "near", at: point(0.1, 0) },
      { _id: "far", at: point(20, 20) },
      { _id: "here", at: point(0, 0) },
    ]),
  );
  assert.eq(
    ["here", "near", "far"],
    places.find({ at: { $near: { $geometry: point(0, 0) } } }).map((each) => each._id),
  );
  assert.eq(2, places.find({ at: { $geoWithin: { $centerSphere: [[0, 0], 0.01] } } }).itcount());
  const [nearest] = places
    .aggregate([{ $geoNear: { near: point(19, 19), distanceField: "d", spherical: true } }, { $limit: 1 }])
    .toArray();
  assert.eq("far", nearest._id);
  assert.writeErrorWithCode(places.insert({ at: { type: "Point", coordinates: [500, 0] } }), 16755);

  const hashed = db.text_and_geo_hashed;
  hashed.drop();
  assert.commandWorked(hashed.createIndex({ h: "hashed" }));
  assert.commandWorked(hashed.insert({ _id: 1, h: 5 }));
  assert.eq(1, hashed.find({ h: 5 }).hint({ h: "hashed" }).itcount());
  assert.writeErrorWithCode(hashed.insert({ h: [1, 2] }), 16766);

  const wild = db.text_and_geo_wild;
  wild.drop();
  assert.commandWorked(wild.createIndex({ "$**": 1 }));
  assert.commandWorked(wild.insert({ _id: 1, deep: { er: 3 } }));
  assert.eq(1, wild.find({ "deep.er": 3 }).hint({ "$**": 1 }).itcount());
})();
