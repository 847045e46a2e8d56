"""Our server's replies, compared with a real mongod's replies to the same bytes."""

from collections.abc import Callable
from struct import unpack_from
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId

from shardwright.wire import legacy, rawbson
from shardwright.wire.compression import Compressor, compress, decompress, negotiate
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import TopologyVersion, await_budget_ms, parse_client_metadata, parse_hello
from shardwright.wire.limits import NESTING_LEVELS_MAX, STORED_NESTING_LEVELS_MAX
from tests.wire.raw_connection import RawConnection, op_msg_frame, op_query_frame

Connect = Callable[[], RawConnection]

DRIVER = {"name": "shardwright tests", "version": "1"}
CLIENT = {"driver": DRIVER, "os": {"type": "Linux"}}
MISSING_ARGUMENT = 40414
OTHER_PROCESS = ObjectId("0123456789ab0123456789ab")

# Codes that mongod raises only with more fields than failCommand provides, or that make it close the connection or
# terminate.
NOT_TO_BE_PROVOKED = {
    ErrorCode.OK,
    ErrorCode.MultipleErrorsOccurred,
    ErrorCode.ShutdownInProgress,
    ErrorCode.DocumentValidationFailure,
    ErrorCode.StaleEpoch,
    ErrorCode.CommandOnShardedViewNotSupportedOnMongod,
    ErrorCode.CannotImplicitlyCreateCollection,
    ErrorCode.ForTestingErrorExtraInfo,
    ErrorCode.StaleDbVersion,
    ErrorCode.JSInterpreterFailureWithStack,
    ErrorCode.WouldChangeOwningShard,
    ErrorCode.ForTestingErrorExtraInfoWithExtraInfoInNamespace,
    ErrorCode.SplitHorizonChange,
    ErrorCode.ShardInvalidatedForTargeting,
    ErrorCode.ForTestingOptionalErrorExtraInfo,
    ErrorCode.TenantMigrationConflict,
    ErrorCode.SkipCommandExecution,
    ErrorCode.ShardCannotRefreshDueToLocksHeld,
    ErrorCode.ChangeStreamInvalidated,
    ErrorCode.ChangeStreamTopologyChange,
    ErrorCode.ChangeStreamStartAfterInvalidate,
    ErrorCode.NonRetryableTenantMigrationConflict,
    ErrorCode.LoadBalancerSupportMismatch,
    ErrorCode.TxnRetryCounterTooOld,
    ErrorCode.CannotConvertIndexToUnique,
    ErrorCode.CollectionUUIDMismatch,
    ErrorCode.CloseConnectionForShutdownCommand,
    ErrorCode.DuplicateKey,
    ErrorCode.StaleConfig,
}


def our_hello_error(command: dict[str, Any], current: TopologyVersion, *, exhaust_allowed: bool) -> CommandError | None:
    body = bson.encode(command)
    try:
        request = parse_hello(body, rawbson.index(body), exhaust_allowed=exhaust_allowed)
        await_budget_ms(request, current)
    except CommandError as error:
        return error
    return None


def assert_same_error(ours: CommandError | None, theirs: dict[str, Any]) -> None:
    if theirs["ok"]:
        assert ours is None
    else:
        assert ours is not None
        mirrored = ours.reply()
        assert mirrored == {name: theirs.get(name) for name in mirrored}


def test_error_names_are_mongods(connect: Connect) -> None:
    connection = connect()
    names: dict[int, str] = {}
    for code in ErrorCode:
        if code not in NOT_TO_BE_PROVOKED:
            fail = {"failCommands": ["ping"], "errorCode": code.value}
            connection.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": fail})
            names[code.value] = connection.command({"ping": 1})["codeName"]
    assert names == {code.value: code.name for code in ErrorCode if code not in NOT_TO_BE_PROVOKED}


@pytest.mark.parametrize("exhaust_allowed", [False, True])
@pytest.mark.parametrize("command_name", ["hello", "isMaster", "ismaster"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"foo": 1},
        {"topologyVersion": "current"},
        {"maxAwaitTimeMS": 1},
        {"topologyVersion": "current", "maxAwaitTimeMS": None},
        {"topologyVersion": None, "maxAwaitTimeMS": None},
        {"topologyVersion": "current", "maxAwaitTimeMS": 0.9},
        {"topologyVersion": "current", "maxAwaitTimeMS": float("nan")},
        {"topologyVersion": "current", "maxAwaitTimeMS": Decimal128("1.5")},
        {"topologyVersion": "current", "maxAwaitTimeMS": Decimal128("NaN")},
        {"topologyVersion": "current", "maxAwaitTimeMS": Decimal128("sNaN")},
        {"topologyVersion": "current", "maxAwaitTimeMS": "x"},
        {"topologyVersion": "current", "maxAwaitTimeMS": -1},
        {"topologyVersion": "current", "maxAwaitTimeMS": Int64(-5)},
        {"topologyVersion": "x", "maxAwaitTimeMS": 1},
        {"topologyVersion": {}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"processId": OTHER_PROCESS}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"counter": Int64(1)}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"processId": OTHER_PROCESS, "counter": 1}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"processId": "x", "counter": Int64(1)}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"processId": OTHER_PROCESS, "counter": Int64(1), "z": 1}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"processId": OTHER_PROCESS, "counter": Int64(99)}, "maxAwaitTimeMS": 1},
        {"topologyVersion": {"processId": OTHER_PROCESS, "counter": Int64(-1)}, "maxAwaitTimeMS": 1},
        {"topologyVersion": "ahead", "maxAwaitTimeMS": 1},
        {"helloOk": True},
        {"helloOk": 1},
        {"helloOk": "x"},
        {"compression": "x"},
        {"compression": [1]},
        {"compression": ["zlib", "foo"]},
    ],
    ids=str,
)
def test_hello_errors_are_mongods(
    connect: Connect, command_name: str, fields: dict[str, Any], exhaust_allowed: bool
) -> None:
    version = connect().command({"hello": 1})["topologyVersion"]
    current = TopologyVersion(version["processId"], version["counter"])
    named = {"current": current.document(), "ahead": current.bumped().document()}
    fields = {
        name: named.get(value, value) if isinstance(value, str) and name == "topologyVersion" else value
        for name, value in fields.items()
    }
    theirs = connect().command({command_name: 1, **fields}, exhaust_allowed=exhaust_allowed)
    ours = our_hello_error({command_name: 1, **fields}, current, exhaust_allowed=exhaust_allowed)
    assert_same_error(ours, theirs)


@pytest.mark.parametrize(
    "client",
    [
        CLIENT,
        "x",
        None,
        1,
        {},
        [],
        {"os": {"type": "x"}},
        {"driver": DRIVER},
        {"driver": {"version": "1"}, "os": {"type": "x"}},
        {"driver": {"name": "1"}, "os": {"type": "x"}},
        {"driver": "x", "os": {"type": "x"}},
        {"driver": DRIVER, "os": "x"},
        {"driver": DRIVER, "os": {}},
        {"driver": {"name": 1, "version": "1"}, "os": {"type": "x"}},
        {"driver": {"name": "1", "version": 1}, "os": {"type": "x"}},
        {"driver": DRIVER, "os": {"type": 1}},
        {"os": {}, "driver": {}},
        {**CLIENT, "application": "x"},
        {**CLIENT, "application": {}},
        {**CLIENT, "application": {"name": 1}},
        {**CLIENT, "application": {"name": "a" * 128}},
        {**CLIENT, "application": {"name": "a" * 129}},
        {**CLIENT, "application": {"name": "ä" * 65}},
        {**CLIENT, "unknown": "x" * 2000},
    ],
    ids=lambda client: str(client)[:60],
)
def test_client_metadata_errors_are_mongods(connect: Connect, client: object) -> None:
    assert_same_error(our_metadata_error(client), connect().command({"hello": 1, "client": client}))


def our_metadata_error(client: object) -> CommandError | None:
    body = bson.encode({"client": client})
    try:
        parse_client_metadata(body, rawbson.index(body)[b"client"])
    except CommandError as error:
        return error
    return None


@pytest.mark.parametrize(
    "frame",
    [
        op_query_frame("admin.$cmd", {"isMaster": 1}),
        op_query_frame("foo.$cmd", {"ismaster": 1}, number_to_return=1, flags=legacy.SECONDARY_OK, skip=1),
        op_query_frame("admin.$cmd", {"hello": 1}, tail=bson.encode({"_id": 0})),
        op_query_frame("admin.$cmd", {"$query": {"isMaster": 1}, "$readPreference": {"mode": "primary"}}),
        op_query_frame("admin.$cmd", {"query": {"isMaster": 1}, "orderby": {}}),
        op_query_frame("admin.$cmd", {"isMaster": 1}, number_to_return=0),
        op_query_frame("admin.$cmd", {"isMaster": 1}, number_to_return=2),
        op_query_frame("admin.$cmd", {"ping": 1}),
        op_query_frame("admin.$cmd", {"ISMASTER": 1}),
        op_query_frame("admin.$cmd", {"_isSelf": 1}),
        op_query_frame("admin.$cmd", {"authenticate": 1}),
        op_query_frame("admin.$cmd", {"buildInfo": 1}),
        op_query_frame("test.$cmd", {"buildinfo": 1}),
        op_query_frame("admin.$cmd", {"saslContinue": 1}),
        op_query_frame("admin.$cmd", {"saslStart": 1}),
        op_query_frame("admin.$cmd", {"whatsmyuri": 1}),
        op_query_frame("admin.$cmd", {}),
        op_query_frame(".$cmd", {"isMaster": 1}),
        op_query_frame("test.c", {}),
        op_query_frame("test.c", {"a": 1}, number_to_return=0),
        op_query_frame("test.c.$cmd", {"isMaster": 1}),
        op_query_frame("admin.$cmd.sys.inprog", {}),
        op_query_frame("", {"isMaster": 1}),
    ],
    ids=lambda frame: str(legacy.parse_query(frame)),
)
def test_op_query_gets_mongods_reply(connect: Connect, frame: bytes) -> None:
    theirs = connect().exchange(frame)
    their_document = bson.decode(theirs[36:])
    query = legacy.parse_query(frame)
    is_run = their_document["ok"] == 1 or their_document["code"] == MISSING_ARGUMENT
    assert legacy.is_permitted(query) == is_run
    if not is_run:
        ours = legacy.unsupported_reply(query)
        # opcode, responseTo, responseFlags, cursorID, startingFrom, numberReturned
        assert unpack_from("<iiIqii", ours, 8) == unpack_from("<iiIqii", theirs, 8)
        assert bson.decode(ours[36:]) == {
            name: value for name, value in their_document.items() if name not in ("$clusterTime", "operationTime")
        }
    else:
        ours = legacy.op_reply(query.request_id, theirs[36:])
        assert unpack_from("<iiIqii", ours, 8) == unpack_from("<iiIqii", theirs, 8)


@pytest.mark.parametrize("name", ["snappy", "zlib", "zstd"])
def test_mongod_understands_what_we_compress(connect: Connect, name: str) -> None:
    connection = connect()
    compressor = Compressor[name.upper()]
    assert connection.command({"hello": 1, "compression": [name]})["compression"] == negotiate([name])
    frame = op_msg_frame({"ping": 1, "$db": "admin", "comment": "x" * 5000})
    reply, used = decompress(connection.exchange(compress(frame, compressor)))
    assert used is compressor
    assert bson.decode(reply[21:])["ok"] == 1


def nested(levels: int) -> bytes:
    document = rawbson.EMPTY_DOCUMENT
    for _ in range(levels - 1):
        document = rawbson.from_elements(rawbson.element(b"a", rawbson.OBJECT, document))
    return document


@pytest.mark.parametrize("levels", [NESTING_LEVELS_MAX - 1, NESTING_LEVELS_MAX, NESTING_LEVELS_MAX + 1])
def test_nesting_limit_of_a_command_is_mongods(connect: Connect, levels: int) -> None:
    command = {"find": "c", "filter": rawbson.raw_document(nested(levels - 1))}
    reply = connect().command(command, db="local")
    exceeds = rawbson.depth_exceeds(bson.encode(command), NESTING_LEVELS_MAX)
    assert exceeds == (levels > NESTING_LEVELS_MAX)
    assert reply.get("code") == (ErrorCode.Overflow if exceeds else None)


@pytest.mark.parametrize("levels", [STORED_NESTING_LEVELS_MAX, STORED_NESTING_LEVELS_MAX + 1])
def test_nesting_limit_of_a_stored_document_is_mongods(connect: Connect, levels: int) -> None:
    document = nested(levels)
    # In the local database, since that is writable without a primary.
    reply = connect().command({"insert": "nested", "documents": [rawbson.raw_document(document)]}, db="local")
    exceeds = rawbson.depth_exceeds(document, STORED_NESTING_LEVELS_MAX)
    assert exceeds == (levels > STORED_NESTING_LEVELS_MAX)
    assert [error["code"] for error in reply.get("writeErrors", [])] == ([ErrorCode.Overflow] if exceeds else [])
