"""The stages of operations, by command, fields and settings of the router."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shardwright.router.command_stages import AROUND, STAGES
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.router.context.router_context import RouterContext
from shardwright.router.passages import LEFT_ALONE
from shardwright.router.routing.signing_key_cache import SigningKeyCache
from shardwright.sharding.cluster_time import SigningKeys, TimeSigner
from shardwright.wire.passages import EPOCH

DRIVER = ("lsid", "$clusterTime")
TRANSACTION = ("lsid", "$clusterTime", "txnNumber", "autocommit")


def router(**settings: Any) -> RouterContext:  # noqa: ANN401 - settings are of all types
    """As much of a router as decides."""
    context = SimpleNamespace(
        access=settings.get("access"),
        options=SimpleNamespace(worker_sockets=settings.get("worker_sockets", ())),
        signing_keys=SimpleNamespace(are_read=settings.get("are_keys_read", True)),
        parameters=SimpleNamespace(requires_api_version=settings.get("requires_api_version", False)),
        default_concerns=SimpleNamespace(is_any_set=settings.get("has_defaults", False)),
        fail_points=SimpleNamespace(is_any_on=settings.get("is_failing", False)),
        tracing=settings.get("tracing"),
    )
    return cast("RouterContext", context)


def names(
    command: str,
    *fields: str,
    is_begun: bool = False,
    **settings: Any,  # noqa: ANN401 - settings are of all types
) -> list[str]:
    """The stages of an operation in their order, then what is done around its handler."""
    given = frozenset(each.encode() for each in fields)
    return [
        each.name
        for each in (*STAGES, *AROUND)
        if each.are_met(router(**settings), ROUTER_COMMANDS[command], given, is_begun=is_begun)
    ]


@pytest.mark.parametrize(
    ("command", "fields", "expected"),
    [
        ("find", (), ["interruption"]),
        ("find", DRIVER, ["cluster time", "session", "interruption"]),
        ("find", ("maxTimeMS",), ["interruption", "time limit", "deadline"]),
        ("find", ("readConcern", "$readPreference"), ["read preference", "interruption", "type of read concern"]),
        ("find", ("writeConcern", "help"), ["interruption", "write concern", "help"]),
        ("find", ("apiStrict", "collectionUUID"), ["interruption", "API version", "actual collection"]),
        ("find", TRANSACTION, ["cluster time", "session", "transaction"]),
        ("getMore", ("maxTimeMS",), ["interruption", "own task"]),
        ("hello", ("maxTimeMS",), ["time limit", "own task"]),
        ("insert", (*DRIVER, "txnNumber", "writeConcern"), ["cluster time", "session"]),
        (
            "create",
            ("writeConcern", "readConcern"),
            ["write concern", "type of read concern", "read concern", "own task"],
        ),
        (
            "create",
            ("readConcern", *TRANSACTION),
            ["cluster time", "session", "type of read concern", "own task", "transaction"],
        ),
        ("find", ("term", "shardVersion"), ["internal fields", "interruption"]),
        ("ping", (), ["own task", "arguments"]),
        (
            "commitTransaction",
            (*TRANSACTION, "writeConcern"),
            ["cluster time", "session", "database", "write concern", "transaction", "arguments"],
        ),
    ],
)
def test_command_and_fields_decide(command: str, fields: tuple[str, ...], expected: list[str]) -> None:
    assert names(command, *fields) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"access": "on"}, ["admission", "cluster time", "session"]),
        ({"are_keys_read": False}, ["signing keys", "cluster time", "session"]),
        ({"requires_api_version": True}, ["cluster time", "session", "required API version"]),
        ({"has_defaults": True}, ["cluster time", "session", "default concerns"]),
        (
            {"is_failing": True},
            ["cluster time", "session", "failCommand", "write concern error of failCommand"],
        ),
        ({"worker_sockets": ("a", "b")}, ["cluster time", "session"]),
    ],
)
def test_settings_decide(settings: dict[str, Any], expected: list[str]) -> None:
    assert names("insert", *DRIVER, **settings) == expected


def test_statements_of_transactions_are_relayed_before_their_session_is_used() -> None:
    found = names("find", *TRANSACTION, worker_sockets=("a", "b"), access="on")
    relay = "relay to the process that has the session's transactions"
    assert found == ["admission", relay, "cluster time", "session", "transaction"]


def test_what_a_passage_has_done_is_not_done_again() -> None:
    everything = {"access": "on", "requires_api_version": True, "is_failing": True}
    assert names("update", *DRIVER, "maxTimeMS", **everything, is_begun=True) == [
        "cluster time",
        "session",
        "time limit",
    ]


def test_fields_that_no_passage_serves_are_among_those_that_decide() -> None:
    """Otherwise an operation that has one would be of the same kind as one without, which may be learned."""
    assert {field for each in (*STAGES, *AROUND) for field in (*each.fields, *each.unless)} >= LEFT_ALONE


def test_reading_the_signing_keys_for_the_first_time_composes_commands_again() -> None:
    async def read() -> list[bool]:
        catalog = SimpleNamespace(read=read_keys)
        async with trio.open_nursery() as nursery:
            keys = SigningKeyCache(cast("Any", catalog), TimeSigner(withholds_unsigned=False), nursery)
            has_changed = []
            for _ in range(2):
                before = EPOCH.number
                await keys.refresh()
                has_changed.append(EPOCH.number != before)
        return has_changed

    assert trio.run(read) == [True, False]


async def read_keys(_: object) -> SigningKeys:
    return SigningKeys(())
