// The UUIDs of collections.
function getUUIDFromListCollections(db, name) {
  const [info] = db.getCollectionInfos({ name });
  assert(info, `${name} is not in database ${db}`);
  return info.info.uuid;
}

function getUUIDFromConfigCollections(mongos, namespace) {
  return mongos.getDB("config").collections.findOne({ _id: namespace }).uuid;
}

function extractUUIDFromObject(uuid) {
  return uuid.hex().replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
