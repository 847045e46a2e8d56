/**
 * A replica set that a suite starts for itself: replication, election, a member that is restarted.
 */
(function () {
  "use strict";

  const rst = new ReplSetTest({ nodes: 3 });
  rst.startSet();
  rst.initiate();
  const again = new ReplSetTest(rst.getURL());
  assert.eq([rst.name, rst.getPrimary().host, 3], [again.name, again.getPrimary().host, again.nodes.length]);

  const primary = rst.getPrimary();
  const coll = primary.getDB("test").c;
  assert.commandWorked(coll.insert({ _id: 1 }, { writeConcern: { w: 3 } }));
  rst.awaitReplication();
  for (const node of rst.getSecondaries()) assert.eq({ _id: 1 }, node.getDB("test").c.findOne());

  const secondary = rst.getSecondary();
  assert.commandFailedWithCode(secondary.getDB("test").c.insert({ _id: 2 }), ErrorCodes.NotWritablePrimary);
  rst.stop(secondary);
  assert.commandWorked(coll.insert({ _id: 3 }, { writeConcern: { w: 2 } }));
  const restarted = rst.start(secondary);
  rst.awaitSecondaryNodes(60000, [restarted]);
  rst.awaitReplication();
  assert.eq(2, restarted.getDB("test").c.find().itcount());

  rst.stepUp(restarted);
  assert.eq(restarted.host, rst.getPrimary().host);
  assert.eq(3, rst.getReplSetConfigFromNode().members.length);
  assert.contains(rst.status().myState, [1, 2]);

  const viaSet = new Mongo(rst.getURL());
  assert.commandWorked(viaSet.getDB("test").c.insert({ _id: 4 }));
  rst.stopSet();
})();
