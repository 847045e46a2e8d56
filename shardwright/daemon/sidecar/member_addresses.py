"""Translation of member addresses in commands and replies. Pure functions.

Clients see each member at the address of its daemon, in hello and wherever else a mongod names members or itself. A
tool that follows an address would otherwise bypass the daemon, or count the member twice. A client may send back a
reply, such as a configuration, so commands are translated too.

Only the named parts of a reply are decoded, because others may have values that Python does not have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.wire.cursor_batch import TIMES
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    STRING,
    array_documents,
    array_of_documents,
    decode_document,
    encode_document,
    find,
    is_string,
    string_value,
    with_value,
)
from shardwright.wire.request import Request, with_stages

_ADDRESS_FIELDS: Final = ("primary", "me")
_ADDRESS_LIST_FIELDS: Final = ("hosts", "passives", "arbiters")

SET_UP_ERROR: Final = "setUpError"
"""The field of hello with the reason why the daemon cannot serve its replica set."""

# Fields that change from one reply to the next although the topology is the same.
_VOLATILE_FIELDS: Final = frozenset({"topologyVersion", "localTime", "lastWrite", "connectionId", "ok", *TIMES})


_AFTER_ROLE: Final = "maxBsonObjectSize"
"""The field of a hello that follows those about the set and the role."""


def rewrite_hello(hello: Mapping[str, Any], sidecars: Mapping[str, str]) -> dict[str, Any]:
    """Replace each mongod's address in a ``hello`` by its daemon's.

    A member whose daemon has not registered yet is left out: clients must never receive the address of a mongod.

    Args:
        sidecars: the address of each daemon, by the address of its mongod.
    """
    seen: dict[str, Any] = {}
    for field, value in hello.items():
        if field in _ADDRESS_FIELDS:
            if value in sidecars:
                seen[field] = sidecars[value]
        elif field in _ADDRESS_LIST_FIELDS:
            known = [sidecars[address] for address in value if address in sidecars]
            if known:
                seen[field] = known
        else:
            seen[field] = value
    return seen


def with_role(seen: Mapping[str, Any], role: str, hello: Mapping[str, Any]) -> dict[str, Any]:
    """Add the field by which a server of a cluster shows its role, in MongoDB's place.

    Args:
        seen: the hello for clients.
        role: ``configsvr`` or ``shardsvr``; otherwise nothing is added.
        hello: the mongod's.
    """
    own: dict[str, Any] = {}
    if role == "configsvr":
        own = {"configsvr": 2}
    elif role == "shardsvr" and "setName" in hello:
        own = {"isImplicitDefaultMajorityWC": _writes_to_majority(hello)}
    fields = list(seen.items())
    at = list(seen).index(_AFTER_ROLE) if _AFTER_ROLE in seen else len(fields)
    return dict([*fields[:at], *own.items(), *fields[at:]])


def _writes_to_majority(hello: Mapping[str, Any]) -> bool:
    """Whether the set's implicit write concern is the majority, as MongoDB derives it from voting members."""
    arbiters = len(hello.get("arbiters", ()))
    members = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    return not arbiters or members > (members + arbiters) // 2 + 1


def topology_of(hello: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a hello reply that ends an awaitable hello when it changes."""
    return {field: value for field, value in hello.items() if field not in _VOLATILE_FIELDS}


def unmapped_members(hello: Mapping[str, Any], sidecars: Mapping[str, str]) -> set[str]:
    """Return the mongods of the set without a registered daemon."""
    return {address for field in _ADDRESS_LIST_FIELDS for address in hello.get(field, ()) if address not in sidecars}


def set_up_error(hello: Mapping[str, Any], mongod: str, daemon: str) -> str | None:
    """Return the reason why the mongod's set does not fit the daemon's options, and the remedy; None if it fits.

    Args:
        hello: the mongod's.
        mongod: the mongod's address according to the daemon's options.
    """
    me = hello.get("me")
    if me is None or me == mongod:
        return None
    if me == daemon:
        return (
            f"the replica set {hello['setName']} has been initiated with the addresses of daemons; reconfigure it "
            f"(replSetReconfig) with the addresses of its mongods, here {mongod} in place of {daemon}"
        )
    return (
        f"the mongod is {me} in the configuration of the replica set {hello['setName']}, and {mongod} for its daemon; "
        f"start {daemon} with --mongod-address {me}, or reconfigure the set"
    )


def election_term(hello: Mapping[str, Any]) -> int:
    """Return the term in which a primary was elected: the low half of its ``electionId``."""
    return int.from_bytes(hello["electionId"].binary[4:], "big")


@dataclass(frozen=True, slots=True)
class ShownMembers:
    """The addresses that clients see.

    Attributes:
        daemons: the address of each daemon, by the address of its mongod.
        cluster_role: ``shardsvr`` or ``configsvr``; the mongod itself was started without a role.
    """

    own: str
    daemons: Mapping[str, str]
    cluster_role: str


Rewriting = Callable[[bytes, ShownMembers], bytes]

_Path = tuple[str, ...]
"""The names of nested fields, from the outermost; arrays between them are skipped."""

_CONFIGURATION: Final = frozenset[_Path]({("members", "host")})
_STATUS: Final = frozenset[_Path](
    {
        ("initialSyncStatus", "initialSyncAttempts", "syncSource"),
        ("members", "name"),
        ("members", "syncSourceHost"),
        ("syncSourceHost",),
    }
)
_SYNC_SOURCES: Final = frozenset[_Path]({("prevSyncTarget",), ("syncFromRequested",)})
_REPLICATION: Final = frozenset[_Path]({("replicationProgress", "host")})
"""Paths of member addresses in a mongod's reports on its set.

The names alone do not suffice: tags and write concern modes have names that users choose.
"""

_HOST_STAGES: Final = (b"$indexStats\0", b"$collStats\0", b"$planCacheStats\0", b"$currentOp\0")
"""First stages of pipelines whose documents name the server in ``host``."""

_STORED: Final = string_value("system.replset")
"""Collection of ``local`` with the set's configuration, which some tools read in place of ``replSetGetConfig``."""

_FIRST_STAGE_AT: Final = 12
"""Offset of the first stage's name in an array: after two lengths, the index and two types."""


def names_members(request: Request) -> bool:
    """Whether a command or its reply may name members, for `with_mongods` and `with_daemons`."""
    if request.name == "find":
        return request.db == "local" and request.raw(next(iter(request.fields.values()))) == _STORED
    return request.name in _REPLIES or request.name in _REQUESTS or b"explain" in request.fields


def with_daemons(request: Request, reply: bytes, shown: ShownMembers) -> bytes:
    """Translate the raw reply to a command for which `names_members` holds.

    A member whose daemon has not registered keeps the address of its mongod, because the state of a set includes all of
    its members. An arbiter has no daemon.
    """
    rewriting = _explanation if b"explain" in request.fields else _REPLIES.get(request.name)
    return reply if rewriting is None else rewriting(reply, shown)


def with_mongods(request: Request, shown: ShownMembers) -> Request:
    """Translate a command for the mongod."""
    rewriting = _REQUESTS.get(request.name)
    return request if rewriting is None else request.with_body(rewriting(request.body, shown))


def with_own_host(request: Request, own: str) -> Request:
    """Return an ``aggregate`` whose documents have the daemon's address in ``host``, if they name the server.

    A pipeline that is explained returns no documents, and its plan shows only the client's stages.
    """
    pipeline = request.fields.get(b"pipeline")
    if pipeline is None or request.get(b"explain") is True:
        return request
    if not request.body.startswith(_HOST_STAGES, pipeline[2] + _FIRST_STAGE_AT):
        return request
    first, *others = request.documents(b"pipeline")
    named = {"$cond": [{"$eq": [{"$type": "$host"}, "string"]}, {"$literal": own}, "$$REMOVE"]}
    stages = [first, encode_document({"$set": {"host": named}}), *others]
    return request.with_body(with_stages(request.body, stages))


def _with_text(document: bytes, name: bytes, text: str) -> bytes:
    span = find(document, name)
    return document if span is None or span[0] != STRING else with_value(document, span, string_value(text))


def _with_part(document: bytes, name: bytes, rewriting: Rewriting, shown: ShownMembers) -> bytes:
    span = find(document, name)
    if span is None or span[0] != OBJECT:
        return document
    return with_value(document, span, rewriting(document[span[2] : span[3]], shown))


def _server_status(reply: bytes, shown: ShownMembers) -> bytes:
    return _with_part(_with_text(reply, b"host", shown.own), b"repl", _replication, shown)


def _replication(section: bytes, shown: ShownMembers) -> bytes:
    """Rewrite a hello; if a client asks for details (``repl: 1``), also a list of all members."""
    shown_section = rewrite_hello(decode_document(section), shown.daemons)
    return encode_document(_renamed(shown_section, shown.daemons, _REPLICATION))


def _members_at(paths: frozenset[_Path]) -> Rewriting:
    """Return the rewriting of a document that has addresses of members in the given fields."""
    return lambda document, shown: encode_document(_renamed(decode_document(document), shown.daemons, paths))


def _diagnostic_data(reply: bytes, shown: ShownMembers) -> bytes:
    def sections(data: bytes, shown: ShownMembers) -> bytes:
        return _with_part(
            _with_part(data, b"serverStatus", _server_status, shown), b"replSetGetStatus", _members_at(_STATUS), shown
        )

    return _with_part(reply, b"data", sections, shown)


def _explanation(reply: bytes, shown: ShownMembers) -> bytes:
    own = HostAndPort.parse(shown.own)

    def server_info(info: bytes, shown: ShownMembers) -> bytes:
        return encode_document({**decode_document(info), "host": own.host, "port": own.port})

    return _with_part(reply, b"serverInfo", server_info, shown)


def _host_info(reply: bytes, shown: ShownMembers) -> bytes:
    return _with_part(reply, b"system", lambda system, shown: _with_text(system, b"hostname", shown.own), shown)


def _command_line(reply: bytes, shown: ShownMembers) -> bytes:
    def options(parsed: bytes, shown: ShownMembers) -> bytes:
        known = decode_document(parsed)
        sharding = {**known.get("sharding", {}), "clusterRole": shown.cluster_role}
        return encode_document(dict(sorted({**known, "sharding": sharding}.items())))

    return _with_part(reply, b"parsed", options, shown)


def _current_op(reply: bytes, shown: ShownMembers) -> bytes:
    span = find(reply, b"inprog")
    if span is None or span[0] != ARRAY:
        return reply
    operations = [_with_text(each, b"host", shown.own) for each in array_documents(reply, span)]
    return with_value(reply, span, array_of_documents(operations))


def _renamed(value: Any, addresses: Mapping[str, str], paths: frozenset[_Path]) -> Any:  # noqa: ANN401 - any BSON value
    """Return a value with the addresses in the given fields replaced."""
    if isinstance(value, list):
        return [_renamed(each, addresses, paths) for each in value]
    if not isinstance(value, Mapping):
        return value
    renamed = dict(value)
    for name in {path[0] for path in paths} & value.keys():
        each = value[name]
        if is_string(each):
            renamed[name] = addresses.get(each, each) if (name,) in paths else each
        else:
            inner = frozenset(path[1:] for path in paths if path[0] == name and len(path) > 1)
            renamed[name] = _renamed(each, addresses, inner)
    return renamed


def _by_daemon(shown: ShownMembers) -> dict[str, str]:
    return {daemon: mongod for mongod, daemon in shown.daemons.items()}


def _configuration(name: bytes) -> Rewriting:
    """Return the rewriting of a command whose argument is the configuration of a set."""

    def rewriting(command: bytes, shown: ShownMembers) -> bytes:
        mongods = _by_daemon(shown)
        return _with_part(
            command,
            name,
            lambda given, _: encode_document(_renamed(decode_document(given), mongods, _CONFIGURATION)),
            shown,
        )

    return rewriting


def _stored_configuration(reply: bytes, shown: ShownMembers) -> bytes:
    def cursor(part: bytes, shown: ShownMembers) -> bytes:
        span = find(part, b"firstBatch")
        if span is None or span[0] != ARRAY:
            return part
        renamed = [_members_at(_CONFIGURATION)(each, shown) for each in array_documents(part, span)]
        return with_value(part, span, array_of_documents(renamed))

    return _with_part(reply, b"cursor", cursor, shown)


def _sync_from(command: bytes, shown: ShownMembers) -> bytes:
    span = find(command, b"replSetSyncFrom")
    if span is None or span[0] != STRING:
        return command
    address = command[span[2] + 4 : span[3] - 1].decode(errors="replace")
    mongod = _by_daemon(shown).get(address)
    return command if mongod is None else with_value(command, span, string_value(mongod))


_REPLIES: Final[Mapping[str, Rewriting]] = {
    "currentOp": _current_op,
    "explain": _explanation,
    "find": _stored_configuration,
    "getCmdLineOpts": _command_line,
    "getDiagnosticData": _diagnostic_data,
    "hostInfo": _host_info,
    "replSetGetConfig": lambda reply, shown: _with_part(reply, b"config", _members_at(_CONFIGURATION), shown),
    "replSetGetStatus": _members_at(_STATUS),
    "replSetSyncFrom": _members_at(_SYNC_SOURCES),
    "serverStatus": _server_status,
}

_REQUESTS: Final[Mapping[str, Rewriting]] = {
    "replSetInitiate": _configuration(b"replSetInitiate"),
    "replSetReconfig": _configuration(b"replSetReconfig"),
    "replSetSyncFrom": _sync_from,
}
