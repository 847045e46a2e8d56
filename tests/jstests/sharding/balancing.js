/**
 * The balancer puts chunks where zones want them, unless it is off, or off for a collection.
 */
(function () {
  "use strict";

  const st = new ShardingTest({ shards: 2, shardOptions: { setParameter: { orphanCleanupDelaySecs: 0 } } });
  st.ensurePrimaryShard("balancing", st.shard0.shardName);
  assert.commandWorked(st.s.adminCommand({ addShardToZone: st.shard1.shardName, zone: "high" }));

  const mine = st.getDB("balancing");
  for (const name of ["moves", "stays"]) {
    const ns = `balancing.${name}`;
    st.shardColl(name, { k: 1 }, false, false, "balancing");
    assert.commandWorked(st.splitAt(ns, { k: 0 }));
    assert.commandWorked(
      st.s.adminCommand({ updateZoneKeyRange: ns, min: { k: 0 }, max: { k: MaxKey }, zone: "high" }),
    );
    for (let k = -20; k < 20; k++) assert.commandWorked(mine[name].insert({ _id: k, k }));
  }
  const status = (name) =>
    assert.commandWorked(st.s.adminCommand({ balancerCollectionStatus: `balancing.${name}` }));
  assert.eq("zoneViolation", status("moves").firstComplianceViolation);
  assert.commandWorked(st.disableBalancing(mine.stays));
  assert(!st.isBalancerEnabled());
  st.checkChunkCounts("balancing.moves", [2, 0]);

  jsTestLog("On");
  st.startBalancer();
  assert(st.isBalancerEnabled());
  assert.soon(() => status("moves").balancerCompliant, "the chunk is moved");
  st.awaitBalancerRound();
  st.checkChunkCounts("balancing.moves", [1, 1]);
  st.checkChunkCounts("balancing.stays", [2, 0]);
  st.checkOrphansAreDeleted();
  st.checkShardCounts(mine.moves, [20, 20]);
  st.checkShardCounts(mine.stays, [40, 0]);

  jsTestLog("Off");
  st.stopBalancer();
  assert(!st.isBalancerEnabled());
  assert.commandWorked(st.moveChunk("balancing.moves", { k: -1 }, st.shard1));
  st.checkChunkCounts("balancing.moves", [0, 2]);
  st.stop();
})();
