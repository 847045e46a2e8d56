"""No secret of a run is shown anywhere, and the key of a cluster is replaced while clients work.

Everything is logged that can be: all levels, and operations however fast they are.
"""

import hashlib
import json
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from bson.binary import Binary
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from shardwright.deploy.access import Access
from shardwright.deploy.internal_authentication import Rotation, Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.scram import ClientConversation, Mechanism, ScramKeys
from tests.credentials import Credentials
from tests.integration.health import http_get
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.waiting import eventually
from tests.integration.workload import running_workload
from tests.local_cluster import Client, RunningCluster, running_cluster, set_credentials, shardwright

LOUD: Final = [
    word
    for role in ("router", "shardd", "configd")
    for option in ("log-level=debug", "slow-ms=0")
    for word in (f"--{role}-option", option)
]
PASSWORDS: Final = {
    name: f"{name}-{secrets.token_hex(8)}"
    for name in ("first", "changed", "exists", "unknown-role", "forbidden", "guessed", "stopped", "wanted")
}
AUDIT: Final = "audit.json"
SIDEWAYS_AUDIT: Final = "audit-sideways.json"
AUDITED: Final = json.dumps({"users.user": {"$ne": "__system"}, "atype": {"$ne": "dropDatabase"}})
SIDECARS: Final = {"shardd": "shard0.0.shardd", "configd": "config.0.configd"}
"""The kinds of daemons that users reach sideways, and one of each."""

CREDENTIALS: Final = ("storedKey", "serverKey")

ROTATION_SECONDS_MAX: Final = 900.0
"""For the restarts of fourteen processes, one at a time."""


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A closed cluster with TLS that logs everything."""
    directory = tmp_path_factory.mktemp("loud")
    audit = ("audit-destination=file", f"audit-path={directory / 'logs' / AUDIT}", f"audit-filter={AUDITED}")
    options = [word for option in audit for word in ("--router-option", option)]
    sideways = ("audit-destination=file", f"audit-path={directory / 'logs' / SIDEWAYS_AUDIT}")
    options += [word for option in sideways for role in SIDECARS for word in (f"--{role}-option", option)]
    with running_cluster(directory, "--auth", "--tls", "--shards", "1", *LOUD, *options) as cluster:
        for process in cluster.document["processes"]:
            set_credentials(process["address"], Credentials(tls=cluster.document["tls"]))
        yield cluster


def test_no_secret_is_shown(loud: RunningCluster) -> None:
    proofs: list[bytes] = []
    with loud.client() as root:
        root.shop.command("profile", 0, slowms=0, filter={"op": "command"})
        with loud.direct("shard0.0.mongod") as mongod:
            mongod.admin.command("profile", 0, slowms=0)
        manage_users(loud, "router.0", root)
        with loud.direct(SIDECARS["shardd"]) as system:
            manage_users(loud, SIDECARS["shardd"], system)
        for process in SIDECARS.values():  # the config servers have the users of the routers
            with raw_client(loud.address(process)) as raw:
                proofs += [converse(raw, PASSWORDS["guessed"]), converse(raw, PASSWORDS["changed"])]
        with raw_client(loud.address("router.0")) as raw:
            proofs += [converse(raw, PASSWORDS["guessed"]), converse(raw, PASSWORDS["changed"])]
        shown = [json.dumps(in_progress_while_stopped(loud, root), default=str)]
        shown += [str(each) for each in answers(loud, root)]
        hidden = list(secrets_of(loud, root, proofs))
    assert {"private key in server.pem", "private key in ca-key.pem"} <= {name for name, _ in hidden}
    shown += [http_get(address, "/metrics")[1] for address in loud.metrics.values()]
    shown += [json.dumps(loud.status()), json.dumps(loud.document)]
    for process in loud.document["processes"]:
        shown += [(Path("/proc") / str(process["pid"]) / name).read_text() for name in ("cmdline", "environ")]
    for log in (loud.directory / "logs").iterdir():
        shown.append(log.read_text(errors="replace"))
    assert '"atype":"authenticate"' in (loud.directory / "logs" / SIDEWAYS_AUDIT).read_text()
    assert any("Slow operation" in each and "createUser" in each for each in shown), "nothing is logged"
    assert [(name, excerpt(text, secret)) for name, secret in hidden for text in shown if secret in text] == []


def excerpt(text: str, secret: str) -> str:
    """Return the text around a secret."""
    at = text.index(secret)
    return text[max(0, at - 200) : at + 100]


def manage_users(cluster: RunningCluster, process: str, root: Client) -> None:
    """Create and change users at a process, and fail to."""
    root.shop.command("createUser", "clerk", pwd=PASSWORDS["first"], roles=["read"])
    root.shop.command("updateUser", "clerk", pwd=PASSWORDS["changed"])
    failing: list[dict[str, Any]] = [
        {"createUser": "clerk", "pwd": PASSWORDS["exists"], "roles": []},
        {"createUser": "other", "pwd": PASSWORDS["unknown-role"], "roles": ["none"]},
        {"updateUser": "nobody", "pwd": PASSWORDS["unknown-role"]},
    ]
    for command in failing:
        with pytest.raises(OperationFailure):
            root.shop.command(command)
    log_in = {"username": "clerk", "password": PASSWORDS["changed"], "authSource": "shop"}
    with cluster.direct(process, **log_in) as clerk, pytest.raises(OperationFailure) as refusal:
        clerk.shop.command("createUser", "x", pwd=PASSWORDS["forbidden"], roles=[])
    assert 'pwd: "xxx"' in str(refusal.value)
    with (
        suppress(OperationFailure),
        cluster.direct(process, **{**log_in, "password": PASSWORDS["guessed"]}) as guest,
    ):
        guest.admin.command("ping")


def converse(raw: RawClient, password: str) -> bytes:
    """Log in as clerk; returns the client's last message."""
    conversation = ClientConversation("clerk", secrets.token_urlsafe(18).encode())
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(conversation.first)}
    answer = raw.command(start, db="shop")
    reply = conversation.read(answer["payload"])
    keys = ScramKeys.derive(Mechanism.SHA_256, password.encode(), reply.salt, reply.iterations)
    proof = conversation.prove(reply, keys)
    raw.command({"saslContinue": 1, "conversationId": answer["conversationId"], "payload": Binary(proof)}, db="shop")
    return proof


def in_progress_while_stopped(cluster: RunningCluster, root: Client) -> list[dict[str, Any]]:
    """Return a router's ``$currentOp`` while the config servers do not answer a createUser."""
    stage = {"$currentOp": {"allUsers": True, "localOps": True}}
    with raw_client(cluster.address("router.0")) as raw:
        converse_as_system(cluster, raw)
        list(root.admin.aggregate([stage]))  # so that the router knows its privileges
        cluster.kill("config.0.mongod", "STOP")
        try:
            raw.send_command({"createUser": "late", "pwd": PASSWORDS["stopped"], "roles": []}, db="shop")

            def creating() -> list[dict[str, Any]]:
                shown = list(root.admin.aggregate([stage]))
                return shown if any("createUser" in each.get("command", {}) for each in shown) else []

            return eventually(creating, what="the router creates a user")
        finally:
            cluster.kill("config.0.mongod", "CONT")
            raw.receive_reply()


def converse_as_system(cluster: RunningCluster, raw: RawClient) -> None:
    key = Path(cluster.document["auth"]["keyFile"]).read_text()
    conversation = ClientConversation("__system", secrets.token_urlsafe(18).encode())
    options = {"skipEmptyExchange": True}
    start = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(conversation.first), "options": options}
    reply = conversation.read(raw.command(start, db="local")["payload"])
    keys = ScramKeys.derive(Mechanism.SHA_256, key.encode(), reply.salt, reply.iterations)
    proof = Binary(conversation.prove(reply, keys))
    assert raw.command({"saslContinue": 1, "conversationId": 1, "payload": proof}, db="local")["done"]


def answers(cluster: RunningCluster, root: Client) -> Iterator[Any]:
    """Yield the processes' replies about themselves."""
    for name in ("router.0", "shard0.0.shardd", "config.0.configd", "shard0.0.mongod", "config.0.mongod"):
        with cluster.direct(name) as client:
            for command in ({"getLog": "global"}, {"getCmdLineOpts": 1}, {"serverStatus": 1}):
                yield client.admin.command(command)
    yield root.admin.command("currentOp", allUsers=True)


def secrets_of(cluster: RunningCluster, root: Client, proofs: list[bytes]) -> Iterator[tuple[str, str]]:
    """Yield all secrets by name, in each written form."""
    files = cluster.document["auth"]
    yield from ((name, Path(files[name]).read_text()) for name in ("keyFile", "passwordFile"))
    yield from PASSWORDS.items()
    for path in (cluster.directory / "tls").iterdir():
        yield from ((f"private key in {path.name}", line) for line in private_key_lines(path.read_text()))
    yield "SHA-1 digest", hashlib.md5(f"clerk:mongo:{PASSWORDS['changed']}".encode()).hexdigest()
    yield from (("proof", each.rpartition(b",p=")[2].decode()) for each in proofs)
    yield from (("payload", b64encode(each).decode()[:-4]) for each in proofs)
    clerk = root.shop.command("usersInfo", "clerk", showCredentials=True)["users"][0]
    for mechanism, stored in clerk["credentials"].items():
        for name in CREDENTIALS:
            yield f"{name} of {mechanism}", stored[name]
            yield f"{name} of {mechanism}", b64decode(stored[name]).hex()
    stored = clerk["credentials"]["SCRAM-SHA-256"]
    salted = hashlib.pbkdf2_hmac(
        "sha256", PASSWORDS["changed"].encode(), b64decode(stored["salt"]), stored["iterationCount"]
    )
    yield from (("salted password", each) for each in (salted.hex(), b64encode(salted).decode()))


def private_key_lines(text: str) -> list[str]:
    """The lines of the private key in a file; none if it has only a certificate."""
    key = re.search("-----BEGIN PRIVATE KEY-----\n(.*?)-----END", text, re.DOTALL)
    return [] if key is None else key[1].splitlines()


def clerk_of(cluster: RunningCluster) -> Client:
    """A client of the routers that knows no key."""
    with cluster.client() as root:
        root.shop.command("createUser", "writer", pwd=PASSWORDS["first"], roles=["readWrite"])
    return cluster.client(username="writer", password=PASSWORDS["first"], authSource="shop", authMechanism="DEFAULT")


def test_the_audit_log_tells_who_did_what(loud: RunningCluster) -> None:
    path = loud.directory / "logs" / AUDIT
    assert path.stat().st_mode & 0o777 == 0o600
    read = len(path.read_text().splitlines())
    password = Path(loud.document["auth"]["passwordFile"]).read_text()
    with loud.direct("router.0", username="root", password=password) as root:
        root.audited.command("create", "plain")
        root.audited.plain.create_index("a", name="by_a")
        root.admin.command("enableSharding", "audited")
        root.admin.command("shardCollection", "audited.split", key={"k": 1})
        root.audited.split.create_index([("k", 1), ("l", 1)])
        root.admin.command("refineCollectionShardKey", "audited.split", key={"k": 1, "l": 1})
        root.audited.plain.rename("renamed")
        root.audited.renamed.drop()
        root.audited.command("createUser", "reader", pwd=PASSWORDS["wanted"], roles=["read"])
        log_in = {"username": "reader", "password": "wrong", "authSource": "audited"}
        with loud.direct("router.0", **log_in) as guest, pytest.raises(OperationFailure):
            guest.audited.command("ping")
        log_in["password"] = PASSWORDS["wanted"]
        with loud.direct("router.0", **log_in) as reader, pytest.raises(OperationFailure):
            reader.audited.command("insert", "plain", documents=[{"a": 1}])
        root.audited.command("updateUser", "reader", pwd=PASSWORDS["exists"])
        with pytest.raises(OperationFailure):
            root.audited.command("createUser", "reader", pwd=PASSWORDS["exists"], roles=["read"])
        root.audited.command("dropUser", "reader")
        root.drop_database("audited")
    events = [json.loads(line) for line in path.read_text().splitlines()[read:]]
    told = [(each["atype"], each["result"], each["users"], each["param"]) for each in events]
    assert {tuple(each) for each in events} == {EVENT_FIELDS}
    assert all(each["remote"]["ip"] == each["local"]["ip"] == "127.0.0.1" for each in events)
    root_user, reader_user = [{"user": "root", "db": "admin"}], [{"user": "reader", "db": "audited"}]
    mechanism = {"mechanism": "SCRAM-SHA-256"}
    expected = [
        ("authenticate", 0, root_user, {**root_user[0], **mechanism}),
        ("createCollection", 0, root_user, {"ns": "audited.plain"}),
        ("enableSharding", 0, root_user, {"ns": "audited"}),
        ("shardCollection", 0, root_user, {"ns": "audited.split", "key": {"k": 1}, "options": {"unique": False}}),
        ("refineCollectionShardKey", 0, root_user, {"ns": "audited.split", "key": {"k": 1, "l": 1}}),
        ("renameCollection", 0, root_user, {"old": "audited.plain", "new": "audited.renamed"}),
        ("dropCollection", 0, root_user, {"ns": "audited.renamed"}),
        ("createUser", 0, root_user, {**reader_user[0], "roles": ["read"]}),
        ("authenticate", 18, [], {**reader_user[0], **mechanism}),
        ("authenticate", 0, reader_user, {**reader_user[0], **mechanism}),
        ("updateUser", 0, root_user, {**reader_user[0], "passwordChanged": True}),
        ("createUser", 51003, root_user, {**reader_user[0], "roles": ["read"]}),
        ("dropUser", 0, root_user, reader_user[0]),
    ]
    assert [each for each in expected if each not in told] == []
    (index, _) = [param for kind, _, _, param in told if kind == "createIndex"]
    assert (index["ns"], index["indexName"], index["indexSpec"]["key"]) == ("audited.plain", "by_a", {"a": 1})
    (refused,) = [event for event in events if event["atype"] == "authCheck"]
    assert (refused["param"]["command"], refused["param"]["ns"]) == ("insert", "audited.plain")
    assert (refused["result"], refused["roles"]) == (13, [{"role": "read", "db": "audited"}])
    assert "dropDatabase" not in {kind for kind, _, _, _ in told}
    (gone,) = [param for kind, _, users, param in told if kind == "logout" and users == reader_user]
    assert gone == {"reason": "Client has disconnected", "initialUsers": reader_user, "updatedUsers": []}


EVENT_FIELDS: Final = ("atype", "ts", "uuid", "local", "remote", "users", "roles", "param", "result")


def keys_of(cluster: RunningCluster) -> list[str]:
    """The keys in its key file."""
    return Access(Path(cluster.document["auth"]["keyFile"]).parent).keys()


def is_of_a_restart(error: PyMongoError) -> bool:
    """Whether an operation failed because a process was just ending."""
    return isinstance(error, AutoReconnect) or ErrorCode.ShutdownInProgress.name in str(error)


def test_the_key_is_replaced_while_clients_work(loud: RunningCluster) -> None:
    """Every process has been restarted, and nothing was lost.

    Writes can only fail in the instant in which the one member of a set ends, more often than a driver repeats them.
    """
    key_file = Path(loud.document["auth"]["keyFile"])
    (old,) = keys_of(loud)
    pids = {process["name"]: loud.pid(process["name"]) for process in loud.document["processes"]}
    rotation = key_file.parent / "rotation.json"
    with clerk_of(loud) as client, running_workload(client.shop.moved, writers=2) as workload:
        workload.wait_for_progress()
        loud.run("rotate-key")
        workload.wait_for_progress()
    assert [error for error in workload.errors if not is_of_a_restart(error)] == []
    assert len(workload.errors) < len(workload.acknowledged) / 10
    with loud.client() as root:
        workload.check(list(root.shop.moved.find()))
    assert not rotation.exists()
    (new,) = keys_of(loud)
    assert new != old
    assert all(loud.pid(name) != pid for name, pid in pids.items())
    with loud.client() as client:
        workload.check(list(client.shop.moved.find()))
    with loud.client(password=old) as former, pytest.raises(OperationFailure, match="Authentication failed"):
        former.admin.command("hostInfo")
    assert (key_file.stat().st_mode & 0o777) == 0o600
    shown = "".join(log.read_text(errors="replace") for log in (loud.directory / "logs").iterdir())
    assert old not in shown
    assert new not in shown


@pytest.mark.exhaustive
def test_clients_of_larger_sets_do_not_notice_that_the_key_is_replaced(tmp_path: Path) -> None:
    """No operation fails: a set has another member, and clients another router, while one of them restarts."""
    size = ("--shards", "1", "--members", "3", "--config-members", "3", "--routers", "2")
    with running_cluster(tmp_path / "cluster", "--auth", *size) as cluster:
        (old,) = keys_of(cluster)
        with clerk_of(cluster) as client:
            with running_workload(client.shop.moved, writers=2) as workload:
                workload.wait_for_progress()
                done = shardwright("rotate-key", "--dir", str(cluster.directory), timeout=ROTATION_SECONDS_MAX)
                workload.wait_for_progress()
            assert done.returncode == 0, done.stderr
            assert workload.errors == []
            workload.check(list(client.shop.moved.find()))
        assert old not in keys_of(cluster)


def test_an_interrupted_rotation_goes_on(loud: RunningCluster) -> None:
    """It begins where it was interrupted: here before the last process has read the new key."""
    key_file = Path(loud.document["auth"]["keyFile"])
    (old,) = keys_of(loud)
    processes = [process["name"] for process in loud.document["processes"]]
    last = processes[-1]
    Rotation(Stage.NEW, [name for name in processes if name != last]).save(key_file.parent / "rotation.json")
    before = {name: loud.pid(name) for name in processes}
    loud.run("rotate-key")
    assert [name for name in processes if loud.pid(name) != before[name]] == [last]
    assert keys_of(loud) == [old]
