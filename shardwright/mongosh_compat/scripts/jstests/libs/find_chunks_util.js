// Chunks of a collection in the catalog.
var findChunksUtil = (function () {
  const withUuid = (config, namespace, query) => ({
    ...query,
    uuid: config.collections.findOne({ _id: namespace }).uuid,
  });
  return {
    findChunksByNs: (config, namespace, query = {}, projection) =>
      config.chunks.find(withUuid(config, namespace, query), projection),
    findOneChunkByNs: (config, namespace, query = {}) => config.chunks.findOne(withUuid(config, namespace, query)),
    countChunksForNs: (config, namespace, query = {}) =>
      config.chunks.find(withUuid(config, namespace, query)).itcount(),
    getChunksJoinClause: (config, namespace) => ({ uuid: config.collections.findOne({ _id: namespace }).uuid }),
  };
})();
