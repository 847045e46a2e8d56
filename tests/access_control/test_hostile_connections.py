"""Attacks by strangers on a connection: log-ins, cluster times, frames, and many connections at once."""

import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from stat import S_IMODE
from typing import Any, Final

import pytest
from bson import Binary, Int64, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.wire.scram import ClientConversation
from tests.access_control.conftest import PlainMongod
from tests.access_control.users import PASSWORD, LogIn, create_users, raw_user, user_of
from tests.core_dumps import NOTHING, CoreDump
from tests.integration.raw_client import RawClient, raw_client
from tests.local_cluster import RunningCluster
from tests.sampling import many
from tests.wire.raw_connection import RawConnection, op_msg_frame

FAILED: Final = (18, "Authentication failed.")
DAEMONS: Final = ("router.0", "shard0.0.shardd", "config.0.configd")


def refusal(reply: dict[str, Any]) -> tuple[int, str]:
    """The code and the text of an error."""
    return reply.get("code", 0), reply.get("errmsg", "")


@contextmanager
def stranger(cluster: RunningCluster, process: str = "router.0") -> Iterator[RawClient]:
    """A connection that has not logged in."""
    with raw_client(cluster.address(process)) as raw:
        yield raw


def is_anybody(raw: RawClient) -> bool:
    """Whether a user has logged in on a connection."""
    return bool(raw.command({"connectionStatus": 1})["authInfo"]["authenticatedUsers"])


def test_a_recorded_log_in_cannot_be_sent_again(closed: RunningCluster) -> None:
    with stranger(closed) as raw:
        first = LogIn(raw, "reader")
        recorded = first.complete()
        again = first.go_on(recorded)
        assert refusal(again) == (17, "No SASL session state found")
    with stranger(closed) as raw:
        replayed = LogIn(raw, "reader")
        assert replayed.conversation.first == first.conversation.first
        replayed.start()
        assert refusal(replayed.go_on(recorded)) == FAILED
        assert not is_anybody(raw)
        assert refusal(replayed.go_on(recorded)) == (17, "No SASL session state found")


def test_strangers_operations_have_no_shapes(closed: RunningCluster) -> None:
    with stranger(closed) as raw:
        for command in ({"find": "strange"}, {"insert": "strange", "documents": [{"a": 1}]}):
            assert raw.command(command, db="shop")["code"] == 13
    with closed.client() as root:
        shapes = [each["key"].get("queryShape", {}) for each in root.admin.aggregate([{"$queryStats": {}}])]
    assert "strange" not in [each["cmdNs"]["coll"] for each in shapes if each]


def test_the_servers_part_of_a_nonce_never_repeats(closed: RunningCluster) -> None:
    payloads = []
    for process in ("router.0", "router.1", "router.0"):
        with stranger(closed, process) as raw:
            payloads += [LogIn(raw, "reader").start()["payload"], LogIn(raw, "nobody").start()["payload"]]
    nonces = [payload.partition(b",")[0] for payload in payloads]
    assert len(set(nonces)) == len(nonces)
    # What is the user's is the same each time, even if there is no such user.
    assert len({payload.partition(b",")[2] for payload in payloads}) == 2


def test_a_proof_for_fewer_iterations_or_another_nonce_is_none(closed: RunningCluster) -> None:
    with stranger(closed) as raw:
        log_in = LogIn(raw, "reader")
        payload = log_in.start()["payload"]
        assert b",i=15000" in payload
        assert refusal(log_in.go_on(log_in.proof(payload.replace(b",i=15000", b",i=4096")))) == FAILED
    with stranger(closed) as raw:
        log_in = LogIn(raw, "reader")
        payload = log_in.start()["payload"]
        nonce = payload.partition(b",")[0]
        assert refusal(log_in.go_on(log_in.proof(payload.replace(nonce, nonce[:-1] + b"!")))) == FAILED
        assert not is_anybody(raw)


def test_conversations_are_not_mixed(closed: RunningCluster) -> None:
    with stranger(closed) as raw, stranger(closed) as other:
        one, two = LogIn(raw, "reader"), LogIn(other, "chief")
        proof, of_other = one.proof(one.start()["payload"]), two.proof(two.start()["payload"])
        assert refusal(one.go_on(of_other)) == FAILED
        assert refusal(two.go_on(of_other, conversation_id=2)) == (17, "sasl: Mismatched conversation id")
        assert refusal(two.go_on(of_other)) == (17, "No SASL session state found")
        assert refusal(one.go_on(proof)) == (17, "No SASL session state found")
        assert not is_anybody(raw)
        assert not is_anybody(other)


@pytest.mark.parametrize(
    "payload",
    [
        b"n,a=chief,n=reader,r=abcdefghijkl",
        b"y,,n=reader,r=abcdefghijkl",
        b"p=tls-unique,,n=reader,r=abcdefghijkl",
        b"n,,m=x,n=reader,r=abcdefghijkl",
        b"n,,n=reader",
        b"n,,n=,r=abcdefghijkl",
        b"n,,n=a=b,r=abcdefghijkl",
        b"n,,n=reader,r=",
        b"",
        b"\xff" * 20,
    ],
)
def test_openings_that_scram_does_not_have_fail(closed: RunningCluster, payload: bytes) -> None:
    with stranger(closed) as raw:
        reply = raw.command({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload})
        if reply["ok"]:  # nobody's name
            reply = raw.command({"saslContinue": 1, "conversationId": 1, "payload": b"c=biws,r=x,p=eA=="})
        assert refusal(reply)[0] == 18
        assert not is_anybody(raw)


@pytest.mark.parametrize("payload", [None, 5, {"a": 1}, "not base64", True])
def test_payloads_of_other_types_are_refused_as_by_a_mongod(
    closed: RunningCluster, plain: PlainMongod, payload: object
) -> None:
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload}
    with stranger(closed) as raw, raw_client(plain.address) as mongod:
        assert refusal(raw.command(start)) == refusal(mongod.command(start))


def test_no_mechanism_can_be_downgraded(closed: RunningCluster) -> None:
    with closed.direct("router.0") as root:
        root.admin.command("createUser", "modern", pwd=PASSWORD, roles=[], mechanisms=["SCRAM-SHA-256"])
    with stranger(closed) as raw:
        first = ClientConversation("modern", b"n" * 24).first
        weaker = {"mechanism": "SCRAM-SHA-1", "payload": first, "db": "admin"}
        hello = raw.command({"hello": 1, "speculativeAuthenticate": {"saslStart": 1, **weaker}})
        assert hello["ok"]
        assert "speculativeAuthenticate" not in hello
        known = raw.command({"hello": 1, "saslSupportedMechs": "admin.modern"})["saslSupportedMechs"]
        assert known == ["SCRAM-SHA-256"]
        reply = raw.command({"saslStart": 1, "mechanism": "SCRAM-SHA-1", "payload": first})
        log_in = LogIn(raw, "modern")
        assert refusal(log_in.go_on(log_in.proof(reply["payload"]))) == FAILED
        assert not is_anybody(raw)
    for name in ("PLAIN", "GSSAPI", "MONGODB-CR", "scram-sha-256", ""):
        with stranger(closed) as raw:
            assert raw.command({"saslStart": 1, "mechanism": name, "payload": first})["code"] == 334, name
            assert not is_anybody(raw)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=reader"}, 18),
        ({"saslStart": 1, "mechanism": "PLAIN", "payload": b"\0reader\0" + PASSWORD.encode()}, 334),
        ({"authenticate": 1, "mechanism": "MONGODB-X509"}, 18),
    ],
)
@pytest.mark.parametrize("process", DAEMONS)
def test_the_third_failure_is_the_last_at_whatever_step(
    closed: RunningCluster, process: str, command: dict[str, Any], code: int
) -> None:
    with stranger(closed, process) as raw:
        db = "$external" if "authenticate" in command else "admin"
        assert [raw.command(command, db=db)["code"] for _ in range(3)] == [code] * 3
        assert raw.is_closed_by_server()


def test_a_connection_has_one_user(closed: RunningCluster) -> None:
    with raw_user(closed, "reader") as raw:
        other = LogIn(raw, "chief")
        assert other.go_on(other.proof(other.start()["payload"]))["code"] in (5626701, 5626702)
        status = raw.command({"connectionStatus": 1})["authInfo"]["authenticatedUsers"]
        assert status == [{"user": "reader", "db": "admin"}]
        assert raw.command({"logout": 1})["ok"]
        assert refusal(raw.command({"find": "goods"}, db="shop")) == (13, "command find requires authentication")
        LogIn(raw, "chief").complete()
        assert raw.command({"find": "goods", "limit": 1}, db="shop")["ok"]


FIND: Final[dict[str, Any]] = {"find": "goods", "limit": 1, "maxTimeMS": 60_000, "$db": "shop"}
UNSIGNED: Final = {"hash": Binary(bytes(20)), "keyId": Int64(0)}


def codes_of_forged_times(raw: RawClient, command: dict[str, Any], *, waits: bool = False) -> list[int]:
    """Return the error codes of a command with each of several cluster times, none of which advances the clock.

    Args:
        raw: the connection.
        command: the command, with its database.
        waits: whether the command waits for the time, so that a daemon would write a no-op and advance the clock.
    """
    present = raw.command({"ping": 1})["$clusterTime"]
    key = present["signature"]["keyId"]
    future, past = Timestamp(present["clusterTime"].time + 100, 1), Timestamp(1, 1)
    times = [
        {"clusterTime": future, "signature": UNSIGNED},
        {"clusterTime": future, "signature": {"hash": Binary(b"x" * 20), "keyId": Int64(0)}},
        {"clusterTime": future, "signature": {"hash": Binary(b"x" * 20), "keyId": key}},
        {"clusterTime": future, "signature": {"hash": Binary(b"x" * 20), "keyId": Int64(5)}},
        {"clusterTime": future, "signature": present["signature"]},
        {"clusterTime": past, "signature": {"hash": Binary(b"x" * 20), "keyId": key}},
        {"clusterTime": Timestamp(future.time + 400 * 86_400, 1), "signature": present["signature"]},
        present,
    ]
    seen = []
    for each in times:
        sent = {**command, "$clusterTime": each}
        if waits and each["clusterTime"] > present["clusterTime"]:
            sent["readConcern"] = {"afterClusterTime": each["clusterTime"]}
        seen.append(refusal(raw.command(sent, db=sent.pop("$db")))[0])
    assert raw.command({"ping": 1})["$clusterTime"]["clusterTime"] < future
    return seen


@pytest.fixture(scope="module")
def refused(plain: PlainMongod) -> list[int]:
    """`codes_of_forged_times` of a mongod."""
    with raw_client(plain.address) as raw:
        LogIn(raw, "reader").complete()
        codes = codes_of_forged_times(raw, FIND)
    assert {204, 211} <= set(codes)
    return codes


@pytest.mark.parametrize("user", ["reader", "chief"])
def test_forged_cluster_times_are_refused_as_by_mongod(closed: RunningCluster, refused: list[int], user: str) -> None:
    with raw_user(closed, user) as raw:
        assert codes_of_forged_times(raw, FIND) == refused


OF_DAEMONS: Final[dict[str, dict[str, Any]]] = {
    "shard0.0.shardd": {"shardingState": 1, "$db": "admin"},
    "config.0.configd": {"setFeatureCompatibilityVersion": "6.0", "$db": "admin"},
}
"""A command that the daemon answers itself."""


@pytest.mark.parametrize("process", OF_DAEMONS)
def test_daemons_use_no_forged_cluster_times(closed: RunningCluster, refused: list[int], process: str) -> None:
    with closed.direct(process) as system:
        create_users(system)
    with raw_user(closed, "chief", process) as raw:
        assert codes_of_forged_times(raw, FIND) == refused
        assert codes_of_forged_times(raw, FIND, waits=True) == refused
        assert codes_of_forged_times(raw, OF_DAEMONS[process]) == refused
        command = dict(OF_DAEMONS[process])
        reply = raw.command(command, db=command.pop("$db"))
    assert reply["$clusterTime"]["signature"]["keyId"]
    assert not reply.keys() & {"$configTime", "$topologyTime"}


def test_who_may_advance_the_clock_needs_no_signature(closed: RunningCluster, plain: PlainMongod) -> None:
    def advances(address: str) -> tuple[int, bool]:
        with raw_client(address) as raw:
            LogIn(raw, "timekeeper").complete()
            present = raw.command({"ping": 1})["$clusterTime"]["clusterTime"]
            later = Timestamp(present.time + 2, 1)
            command = {**FIND, "$clusterTime": {"clusterTime": later, "signature": UNSIGNED}}
            code = refusal(raw.command(command, db=command.pop("$db")))[0]
            return code, raw.command({"ping": 1})["$clusterTime"]["clusterTime"] >= later

    actions = {"resource": {"cluster": True}, "actions": ["advanceClusterTime"]}
    roles = ["timekeeping", {"role": "read", "db": "shop"}]
    with plain.client("root") as root, closed.direct("router.0") as of_cluster:
        for each in (root, of_cluster):
            each.admin.command("createRole", "timekeeping", privileges=[actions], roles=[])
            each.admin.command("createUser", "timekeeper", pwd=PASSWORD, roles=roles)
    assert advances(closed.address("router.0")) == advances(plain.address) == (0, True)


@pytest.mark.parametrize("process", DAEMONS)
def test_no_unsigned_time_is_handed_out_before_the_log_in(closed: RunningCluster, process: str) -> None:
    """Drivers gossip the times that their monitors receive, which do not log in."""
    with stranger(closed, process) as raw:
        first = raw.command({"hello": 1})
        with closed.direct(process) as system:
            system.admin.command("hello")  # which a mongod answers with an unsigned time
        later = raw.command({"hello": 1, "topologyVersion": first["topologyVersion"], "maxAwaitTimeMS": 100})
    assert first["$clusterTime"]["signature"]["keyId"]
    assert "$clusterTime" not in later or later["$clusterTime"]["signature"]["keyId"]


FIRST_USER: Final = {"createUser": "intruder", "pwd": "p", "roles": ["root"]}


@pytest.mark.parametrize("process", [*DAEMONS, "router.1", "shard0.0.mongod", "config.0.mongod"])
def test_there_is_no_second_first_user(closed: RunningCluster, process: str) -> None:
    with stranger(closed, process) as raw:
        assert refusal(raw.command(FIRST_USER)) == (13, "command createUser requires authentication")
        assert refusal(raw.command({"addShard": "x/h:1"}))[0] in (13, 59)


def test_sockets_are_private_and_no_way_around_the_log_in(closed: RunningCluster) -> None:
    sockets = [path for path in closed.directory.rglob("*.sock") if path.is_socket()]
    assert len(sockets) >= 3
    for path in sockets:
        assert S_IMODE(path.parent.stat().st_mode) == 0o700
        connection = RawConnection(str(path))
        try:
            for command in (FIRST_USER, {"find": "system.users"}, {"serverStatus": 1}, {"shutdown": 1}):
                assert connection.command(command)["code"] == 13, path.name
        finally:
            connection.close()


def test_a_mongod_has_no_port(closed: RunningCluster) -> None:
    """Some of its test commands need no log-in."""
    mongods = [each for each in closed.document["processes"] if each["role"] == "mongod"]
    assert mongods
    for each in mongods:
        assert Path(each["address"]).is_socket()
        assert not listening_ports(each["pid"])
    (router,) = (each for each in closed.document["processes"] if each["name"] == "router.0")
    assert int(router["address"].rpartition(":")[2]) in listening_ports(router["pid"])


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process listens (proc(5): ``/proc/PID/net/tcp`` lists all sockets, by inode)."""
    own = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == LISTEN and f"socket:[{columns[9]}]" in own:
                found.add(int(columns[1].rpartition(":")[2], 16))
    return found


LISTEN: Final = "0A"


def test_nobody_but_the_owner_reads_the_files(closed: RunningCluster) -> None:
    logs = list((closed.directory / "logs").iterdir())
    assert {S_IMODE(path.stat().st_mode) for path in logs} == {0o600}
    private = ("auth", "data", "logs", "sockets")
    assert {S_IMODE((closed.directory / name).stat().st_mode) for name in private} == {0o700}


def test_no_process_leaves_its_memory_in_a_core_dump(closed: RunningCluster) -> None:
    """The mongods have the key too."""
    dumps = {each["name"]: CoreDump.of(each["pid"]) for each in closed.document["processes"]}
    assert dumps == dict.fromkeys(dumps, NOTHING)
    assert "shard0.0.mongod" in dumps


VALID: Final = [
    op_msg_frame({"hello": 1, "$db": "admin"}),
    op_msg_frame({"ping": 1, "$db": "admin"}),
    op_msg_frame({"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=a,r=b", "$db": "admin"}),
    op_msg_frame({"saslContinue": 1, "conversationId": 1, "payload": b"c=biws", "$db": "admin"}),
    op_msg_frame({"hello": 1, "speculativeAuthenticate": {"saslStart": 1, "db": "admin"}, "$db": "admin"}),
    op_msg_frame(
        {"find": "goods", "filter": {"a": {"$in": [1, 2]}}, "$db": "shop", "lsid": {"id": Binary(b"x" * 16, 4)}}
    ),
    op_msg_frame({"insert": "goods", "documents": [{"a": 1}], "$db": "shop"}),
]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame that is nearly valid: some bytes are changed, cut off or added; sometimes nothing of it is valid."""
    frame = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frame) - 1))
        frame[at] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        frame = frame[: draw(st.integers(1, len(frame)))] + draw(st.binary(max_size=20))
    if draw(st.booleans()):
        frame[:4] = struct.pack("<i", len(frame))
    return bytes(frame)


@pytest.mark.parametrize("process", DAEMONS)
@pytest.mark.parametrize("user", [None, "reader"])
def test_no_frame_harms_others(closed: RunningCluster, process: str, user: str | None) -> None:
    if user is not None and process != "router.0":
        with closed.direct(process) as system:
            known = [each["user"] for each in system.admin.command("usersInfo", 1)["users"]]
            if user not in known:
                system.admin.command("createUser", user, pwd=PASSWORD, roles=[{"role": "read", "db": "shop"}])
    pid = closed.pid(process)

    @settings(max_examples=many(400, 25))
    @given(sent=st.lists(frames(), min_size=1, max_size=3))
    def send(sent: list[bytes]) -> None:
        with stranger(closed, process) as raw:
            if user is not None:
                LogIn(raw, user).complete()
            raw.socket.settimeout(5)
            try:
                for frame in sent:
                    raw.send(frame)
                raw.socket.shutdown(socket.SHUT_WR)
                while raw.receive():
                    pass
            except (ConnectionError, OSError):
                pass  # it was closed, which is an answer

    with raw_client(closed.address(process)) as witness:
        send()
        assert witness.command({"ping": 1})["ok"]
    assert closed.pid(process) == pid
    assert "Traceback" not in closed.log(process)


def test_many_connections_that_never_log_in_lock_nobody_out(closed: RunningCluster) -> None:
    """As many as the router takes, but for a few. The limit holds for all connections, as on a mongod."""
    with closed.direct("router.0") as root:
        available = root.admin.command("serverStatus")["connections"]["available"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = min(many(10_000, 500), hard - 500, available - 100)
    try:
        with ExitStack() as crowd:
            for _ in range(wanted):
                crowd.enter_context(stranger(closed))
            last = crowd.enter_context(stranger(closed))
            assert last.command({"ping": 1})["ok"]
            with user_of(closed, "reader") as client:
                assert client.shop.goods.find_one() is not None
        with user_of(closed, "reader") as client:
            assert client.shop.goods.find_one() is not None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
