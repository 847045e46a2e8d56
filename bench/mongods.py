"""Single-member replica sets outside our cluster."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pymongo.errors import PyMongoError

from bench.load import create_indexes, insert_documents
from bench.loadgen import BenchError
from bench.targets import Target
from bench.workloads import MONGODB
from shardwright.deploy.cluster_state import DIAGNOSTIC_DATA
from shardwright.deploy.mongod import connect, initiate, mongod_arguments, wait_primary
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import ProcessPlan, Role

_START_SECONDS: Final = 60.0
_COMMAND_SECONDS: Final = 120.0


@contextmanager
def direct_mongod(mongod: str, directory: Path, *, cache_gb: float) -> Iterator[Target]:
    """Run a mongod with the data, as the target without anything in front of it."""
    with PortReservation() as ports:
        plan = ProcessPlan("direct", Role.MONGOD, ports.hold_free(), "direct")
        ports.release(*plan.ports())
        with primary_mongod(mongod, plan, directory, cache_gb) as pid:
            with connect(plan.address, _COMMAND_SECONDS) as client:
                create_indexes(client)
                insert_documents(client, MONGODB)
            yield Target("direct", plan.address, MONGODB, {"mongod": (pid,)})


@contextmanager
def primary_mongod(mongod: str, plan: ProcessPlan, directory: Path, cache_gb: float, *options: str) -> Iterator[int]:
    """Run a mongod that is primary of its own set; yields its pid."""
    directory.mkdir(parents=True)
    log = directory / "mongod.log"
    parameters = {DIAGNOSTIC_DATA: "false"}
    arguments = mongod_arguments(
        mongod, plan, dbpath=directory, log=log, sockets=directory, cache_gb=cache_gb, parameters=parameters
    )
    process = subprocess.Popen([*arguments, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(plan.address, timeout=_START_SECONDS) as client:
            client.admin.command("ping")
        initiate(str(plan.replica_set), [plan], plan.address)
        wait_primary(str(plan.replica_set), [plan.address], time.monotonic() + _START_SECONDS)
        yield process.pid
    except PyMongoError as error:
        raise BenchError(f"{plan.name} does not start: {error}") from error
    finally:
        process.terminate()
        process.wait()
