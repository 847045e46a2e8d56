"""``_configsvrFinishUpgrade``: raise the cluster's feature version to the newest one of this release.

Like ``setFeatureCompatibilityVersion``, it is an operator's decision. No daemon without the new version can run
afterwards. So the command is refused while such a daemon runs or may run, and one that starts later refuses to run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import trio

from shardwright.configd.catalog.feature_version import read_feature_version, write_feature_version
from shardwright.configd.commands.operation import Operation
from shardwright.configd.shards.shard_clients import handshake
from shardwright.configd.term.term import ADDING_SHARDS, CLUSTER_SETTINGS, Term
from shardwright.sharding.feature_version import NEWEST, knows, router_knows
from shardwright.wire.arguments import Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.transport.client import Connection

_NAME: Final = "_configsvrFinishUpgrade"

_HELLO_SECONDS: Final = 5.0
"""Time limit for a daemon's answer."""

_ROUTER_SECONDS: Final = 60.0
"""Age from which a router's entry shows that it is not running; routers write theirs every ten seconds."""


async def finish_upgrade(operation: Operation) -> dict[str, Any]:
    """Raise the feature version, unless it is the newest one already.

    The reply has the cluster's ``featureVersion`` and ``newest``. With ``dryRun`` nothing changes, and ``obstacles``
    has the reasons against a change.

    Raises:
        CommandError: IncompatibleServerVersion, a daemon does not support the new version, or cannot be reached.
    """
    is_dry_run = operation.arguments.boolean(b"dryRun", strictness=Strictness.BOOL)
    term = operation.term
    # No shard may be added during the checks.
    async with term.locks.hold(ADDING_SHARDS, CLUSTER_SETTINGS):
        before = await read_feature_version(term.catalog.mongod)
        obstacles = await _obstacles(term) if before < NEWEST else []
        if is_dry_run:
            return {"featureVersion": before, "newest": NEWEST, "obstacles": obstacles}
        if obstacles:
            raise CommandError(
                ErrorCode.IncompatibleServerVersion,
                f"the upgrade cannot be finished: {'; '.join(obstacles)}",
            )
        if before < NEWEST:
            await write_feature_version(term.catalog.mongod, NEWEST)
            await operation.log_changes("finishUpgrade", "", {"from": before, "to": NEWEST})
    return {"featureVersion": NEWEST, "newest": NEWEST}


async def _obstacles(term: Term) -> list[str]:
    """Return a sentence for each daemon that does not support the newest feature version, or is unreachable."""
    found: dict[str, str] = {}
    asked: set[str] = set()

    async def ask(address: str, nursery: trio.Nursery) -> None:
        if address in asked:
            return
        asked.add(address)
        try:
            with trio.fail_after(_HELLO_SECONDS):
                connection = await Connection.open(address, handshake=handshake())
        except (BackendError, trio.TooSlowError) as error:
            found[address] = f"{address} cannot be reached ({str(error) or 'it does not answer'})"
            return
        connection.close()
        if not knows(connection.hello.get("extensions", ()), NEWEST):
            found[address] = f"{address} does not know feature version {NEWEST}; upgrade and restart it"
        # The catalog lacks members that are hidden from routers' lists, or were added just now.
        for member in (*connection.hello.get("hosts", ()), *connection.hello.get("passives", ())):
            nursery.start_soon(ask, member, nursery)

    shards = await term.catalog.shards()
    sets = [term.config_servers(), *(shard.connection_string for shard in shards)]
    async with trio.open_nursery() as nursery:
        for each in sets:
            for address in each.addresses:
                nursery.start_soon(ask, address, nursery)
    routers = await term.catalog.find("mongos", {}, sort={"_id": 1})
    return [*(found[address] for address in sorted(found)), *_of_routers(routers, datetime.now(UTC))]


def _of_routers(entries: list[dict[str, Any]], now: datetime) -> list[str]:
    """Return a sentence for each running router that does not support the newest feature version."""
    return [
        f"the router {entry['_id']} does not know feature version {NEWEST}; upgrade it, or stop it and wait "
        f"{_ROUTER_SECONDS:.0f} s"
        for entry in entries
        if _is_running(entry, now) and not router_knows(entry, NEWEST)
    ]


def _is_running(entry: Mapping[str, Any], now: datetime) -> bool:
    ping = entry.get("ping")
    if not isinstance(ping, datetime):
        return False
    return now - ping.replace(tzinfo=ping.tzinfo or UTC) < timedelta(seconds=_ROUTER_SECONDS)
