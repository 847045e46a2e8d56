// The servers of a deployment, found from a connection to one of them.
var Topology = {
  kStandalone: "stand-alone",
  kRouter: "router",
  kReplicaSet: "replica set",
  kShardedCluster: "sharded cluster",
};

var DiscoverTopology = {
  findConnectedNodes(connection) {
    const hello = assert.commandWorked(connection.adminCommand({ hello: 1 }));
    if (hello.msg === "isdbgrid") {
      const shards = connection.getDB("config").shards.find().toArray();
      const found = Object.fromEntries(
        shards.map((each) => [each._id, DiscoverTopology.findConnectedNodes(new Mongo(each.host))]),
      );
      return {
        type: Topology.kShardedCluster,
        shards: found,
        mongos: { type: Topology.kRouter, nodes: [connection.host] },
      };
    }
    if (hello.setName === undefined) return { type: Topology.kStandalone, mongod: connection.host };
    return { type: Topology.kReplicaSet, primary: hello.primary, nodes: hello.hosts };
  },
  findNonConfigNodes(connection) {
    const found = DiscoverTopology.findConnectedNodes(connection);
    return Object.values(found.shards ?? { only: found }).flatMap((each) => each.nodes ?? [each.mongod]);
  },
};
