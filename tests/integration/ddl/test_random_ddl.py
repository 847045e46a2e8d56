"""Random changes of collections during random writes, moves and balancing, compared with a model of the collections.

One task makes the changes; others write to the same collections, move chunks and change zones, and the balancer runs.
Afterwards every document is where the model says, each collection has its key, indexes and options, and
``checkMetadataConsistency`` finds nothing.
"""

from functools import partial
from itertools import count
from random import Random
from typing import Final

import pytest

from tests.integration.random_ddl.beside import STABLE, balancing, beside, change_zones, move_chunks, write_stable
from tests.integration.random_ddl.changes import Changes
from tests.integration.random_ddl.ledger import Ledger
from tests.integration.random_ddl.writers import RandomWriter
from tests.integration.sharded import LOWER
from tests.local_cluster import Client

REFUSED_SHARE_MAX: Final = 0.2

_numbers = count(1)


def run(routers: tuple[Client, Client], seed: int, steps: int) -> None:
    number = next(_numbers)
    dbs = (f"random_ddl_{number}", f"random_ddl_{number}_other")
    routers[0].admin.command("enableSharding", dbs[0], primaryShard=LOWER)
    routers[0].admin.command("shardCollection", f"{dbs[0]}.{STABLE}", key={"a": 1})
    ledger, identities, stable = Ledger(), count(), list[int]()
    changes = Changes(routers, Random(seed), dbs, ledger)
    writers = [
        RandomWriter(router, changes.places, ledger, Random(f"{seed}/{index}"), identities)
        for index, router in enumerate(routers)
    ]
    with (
        balancing(routers[0]),
        beside(
            partial(move_chunks, routers[0], dbs, Random(seed + 1)),
            partial(change_zones, routers[1], dbs, Random(seed + 2)),
            partial(write_stable, routers[1], dbs[0], stable),
            *(writer.run for writer in writers),
        ),
    ):
        for done in range(steps):
            changes.step()
            if done % 10 == 9:
                changes.check()
    changes.check()
    check_documents(routers, changes.places, ledger)
    print(f"changes: {changes.made}; writes: {[(each.written, each.refused) for each in writers]}")
    assert sum(each.refused for each in writers) <= REFUSED_SHARE_MAX * sum(each.written for each in writers)
    assert sorted(each["_id"] for each in routers[0][dbs[0]][STABLE].find({}, {"_id": 1})) == stable
    for db in dbs:
        routers[0].admin.command("enableSharding", db)
        found = routers[0][db].command("checkMetadataConsistency", 1, checkIndexes=True)["cursor"]["firstBatch"]
        assert found == []
        routers[0].drop_database(db)


def check_documents(routers: tuple[Client, Client], places: list[str], ledger: Ledger) -> None:
    for router in routers:
        split = [(place, *place.split(".", 1)) for place in places]
        ledger.check({place: list(router[db][name].find()) for place, db, name in split})


def test_random_changes(routers: tuple[Client, Client]) -> None:
    run(routers, seed=1, steps=40)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_random_changes(routers: tuple[Client, Client], seed: int) -> None:
    run(routers, seed, steps=250)
