"""Kills and interruptions at every phase: no document is lost, doubled or stale, and nothing is copied from zero."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.sampling import many
from tests.sync.running import Client, Ends, RestartableSet, SyncProcess, contents
from tests.sync.surviving import DOCUMENTS, PHASES, survive
from tests.sync.writers import DATABASE, prepare, writing

OWN = "shardwright"
ELECTION = " election"
STEP_DOWN_SECONDS = 2
"""The only member is elected again after that time."""


class Fallible:
    """Two replica sets that can be killed, one as source and one as target."""

    def __init__(self, sets: list[RestartableSet], ends: Ends) -> None:
        self.sets = dict(zip(("source", "target"), sets, strict=True))
        self.ends = ends


@pytest.fixture(scope="module")
def sets(mongod_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RestartableSet]]:
    """The two replica sets."""
    directory = tmp_path_factory.mktemp("fallible")
    found = [RestartableSet(mongod_binary, directory, each) for each in ("left", "right")]
    try:
        for each in found:
            each.start()
        yield found
    finally:
        for each in found:
            each.kill()


@pytest.fixture
def fallible(sets: list[RestartableSet], tmp_path: Path) -> Iterator[Fallible]:
    """Both sets, empty."""
    ends = Ends(sets[0].uri, sets[1].uri, tmp_path)
    ends.empty()
    yield Fallible(sets, ends)
    ends.close()


def break_it(fallible: Fallible, victim: str, process: SyncProcess) -> None:
    """Kill a process, and start it again unless it is the one that replicates."""
    if victim == "sync":
        process.kill()
    elif victim == "stopped":
        process.process.send_signal(signal.SIGSTOP)
        # The lease of a process that is stopped expires, and another one continues.
        with fallible.ends.syncing("--reversible") as second:
            second.wait_followed(fallible.ends.source)
            process.process.send_signal(signal.SIGCONT)
            process.process.wait(many(60, 30))
            assert process.process.returncode
    elif victim.endswith(ELECTION):
        end = victim.removesuffix(ELECTION)
        client = fallible.ends.source if end == "source" else fallible.ends.target
        client.admin.command("replSetStepDown", STEP_DOWN_SECONDS, force=True)
    else:
        fallible.sets[victim].kill()
        fallible.sets[victim].start()


@pytest.mark.matrix(share=0.16)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", ["sync", "stopped", "source", "target", f"source{ELECTION}", f"target{ELECTION}"])
def test_nothing_is_lost_whatever_is_killed_at_any_phase(fallible: Fallible, victim: str, phase: str) -> None:
    ends = fallible.ends
    prepare(ends.source, DOCUMENTS)
    with writing(ends.source, seed=6, survives=True, has_ddl=False) as workload:
        survive(ends, workload, phase, lambda process: break_it(fallible, victim, process))


@pytest.mark.parametrize("count", [many(4, 2)])
def test_processes_that_start_at_once_are_one_replication(ends: Ends, count: int) -> None:
    prepare(ends.source)
    processes: list[SyncProcess] = []
    try:
        with ThreadPoolExecutor() as pool:
            starting = [pool.submit(SyncProcess, ends.directory, *ends.uris, "--continuous") for _ in range(count)]
            processes = [each.result() for each in starting]
        for process in processes:
            process.wait_followed(ends.source)
        leases = list(ends.target[OWN]["sync.leases"].find())
        assert len(leases) == 1
        assert leases[0]["term"] == 1
        assert contents(ends.target) == contents(ends.source)
    finally:
        for process in processes:
            process.close()


BACKED_UP = [(OWN, "sync"), (OWN, "sync.ranges"), (OWN, "sync.verification"), (DATABASE, "items")]


def backup(client: Client) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The target's documents, with the replication's own, but not its lease."""
    return {(database, name): list(client[database][name].find()) for database, name in BACKED_UP}


def restore(client: Client, saved: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    for (database, name), documents in saved.items():
        client[database][name].delete_many({})
        if documents:
            client[database][name].insert_many(documents)


@pytest.mark.matrix(share=0.25)
@pytest.mark.parametrize(("of_source", "of_target"), [(0, 2), (2, 0), (1, 3), (3, 1)])
def test_histories_that_were_cut_lead_to_the_newest_common_session(ends: Ends, of_source: int, of_target: int) -> None:
    """Each end is as if restored from a backup, made some sessions ago."""
    prepare(ends.source)
    backups = []
    for number in range(5):
        ends.source[DATABASE].items.update_one({"_id": number}, {"$set": {"round": number}}, upsert=True)
        assert ends.run().status == 0
        backups.append(backup(ends.target))
    restore(ends.target, backups[-1 - of_target])
    if of_source:
        stored = ends.source[OWN].sync.find_one()
        assert stored is not None
        history = stored["history"][of_source:]
        kept = {"session_id": history[0]["session_id"], "source_last_time": history[0]["end_last"]}
        ends.source[OWN].sync.update_one({}, {"$set": {"history": history, **kept}})
    if of_source > of_target:
        # The target may have changes that the source has lost.
        ends.target[DATABASE].items.insert_one({"_id": "lost at the source"})
    done = ends.run("--json")
    assert done.status == 0, done.errors
    assert contents(ends.target) == contents(ends.source)
    counters = json.loads(done.output.splitlines()[-1])["counters"]
    assert counters["documents_written"] < 20
    is_exact = of_source <= of_target
    assert ("the source has the session of the target" in done.errors) is is_exact
