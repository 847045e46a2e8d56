"""Questions to all processes of a cluster: each member of its replica sets, and the routers in ``config.mongos``.

A set's configuration names members that the catalog and hello lack: hidden ones, and members that were added just now.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import trio

from shardwright.wire.errors import BackendError, CommandError, RemoteProtocolError
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.transport import Transport

ANSWER_SECONDS: Final = 5.0
"""Time limit for a daemon's answer."""

FRESH_SECONDS: Final = 60.0
"""Maximum age of the entry of a running router; routers write theirs every ten seconds."""

WATCH_SECONDS: Final = 15.0
"""Time in which a running router certainly writes its entry."""

_WATCH_PAUSE_SECONDS: Final = 1.0


class Member(NamedTuple):
    """The answer of a member; ``failure`` is empty unless it could not be asked, or not for the members of its set."""

    address: str
    hello: Mapping[str, Any]
    failure: str


async def ask_members(
    transport: Transport, sets: Iterable[ConnectionString], handshake: Callable[[], Mapping[str, Any]]
) -> list[Member]:
    """Ask the daemons of all members of these sets, also of hidden ones, but not arbiters, which have no daemon.

    Args:
        handshake: builds the hello for the connections.

    Returns:
        The members in the order of their addresses. One without a registered daemon has its mongod's.
    """
    found: dict[str, Member] = {}
    asked: set[str] = set()

    async def ask(address: str, nursery: trio.Nursery) -> None:
        if address in asked:
            return
        asked.add(address)
        hello: Mapping[str, Any] = {}
        try:
            with trio.fail_after(ANSWER_SECONDS):
                connection = await Connection.open(transport, address, handshake=handshake())
                hello = connection.hello
                try:
                    daemons, others = await _members(connection)
                finally:
                    connection.close()
        except (BackendError, CommandError, RemoteProtocolError, trio.TooSlowError) as error:
            found[address] = Member(address, hello, str(error) or "it does not answer")
            return
        found[address] = Member(address, hello, "")
        for each in daemons:
            nursery.start_soon(ask, each, nursery)
        for each in others:
            found.setdefault(each, Member(each, {}, "no daemon has registered for this mongod"))

    async with trio.open_nursery() as nursery:
        for each in sets:
            for address in each.addresses:
                nursery.start_soon(ask, address, nursery)
    return [found[address] for address in sorted(found)]


async def _members(connection: Connection) -> tuple[set[str], set[str]]:
    """Return the daemons of the set's members, and the mongods without a registered daemon."""
    hello = connection.hello
    configuration = (await connection.command("admin", {"replSetGetConfig": 1}))["config"]
    # The daemon that translates the configuration reads the registrations only from time to time.
    question = {"find": "sidecars", "$readPreference": {"mode": "nearest"}, "batchSize": 1000, "singleBatch": True}
    registered = (await connection.command("config", question))["cursor"]["firstBatch"]
    daemon_of = {each["_id"]: each.get("sidecar") for each in registered}
    hosts = {each["host"] for each in configuration["members"] if not each.get("arbiterOnly")}
    hosts = {daemon_of.get(each) or each for each in hosts}
    known = {connection.address, *hello.get("hosts", ()), *hello.get("passives", ()), *daemon_of.values()}
    return hosts & known, hosts - known


async def running_routers(
    read: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
    now: datetime,
    concerns: Callable[[Mapping[str, Any]], bool],
) -> list[Mapping[str, Any]]:
    """Return the entries of the running routers.

    Routers of other releases, and mongos, write the time of their own clocks. An entry whose time is far from the
    config servers' time proves nothing. Its router runs if the entry changes within `WATCH_SECONDS`.

    Args:
        read: reads ``config.mongos``.
        now: the time of the config servers, in UTC.
        concerns: whether an entry is worth the wait; others with such a time are left out.
    """
    entries = await read()
    running = {_key(each): each for each in entries if _is_fresh(each, now)}
    doubtful = {_key(each): each for each in entries if _key(each) not in running and concerns(each)}
    with trio.move_on_after(WATCH_SECONDS):
        while doubtful:
            await trio.sleep(_WATCH_PAUSE_SECONDS)
            for each in await read():
                before = doubtful.get(_key(each))
                if before is not None and before.get("ping") != each.get("ping"):
                    del doubtful[_key(each)]
                    running[_key(each)] = each
    return [running[key] for key in sorted(running)]


def _key(entry: Mapping[str, Any]) -> str:
    return str(entry.get("_id"))


def _is_fresh(entry: Mapping[str, Any], now: datetime) -> bool:
    ping = entry.get("ping")
    if not isinstance(ping, datetime):
        return False
    return abs((now - ping.replace(tzinfo=ping.tzinfo or UTC)).total_seconds()) < FRESH_SECONDS
