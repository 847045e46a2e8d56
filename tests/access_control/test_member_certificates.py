"""A cluster whose processes recognise each other by certificates (``clusterAuthMode: x509``), with no key at all.

Its own mongods are the genuine servers that its daemons are compared with.
"""

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import bson
import pytest
from pymongo.errors import OperationFailure

from shardwright.deploy.authority import Authority
from shardwright.deploy.certs import TlsFiles
from shardwright.mongosh_compat.runner import find_mongosh
from shardwright.wire.message import op_msg
from tests.local_cluster import Client, RunningCluster, running_cluster

X509: Final = "MONGODB-X509"
AUTHENTICATE: Final[dict[str, Any]] = {"authenticate": 1, "mechanism": X509}
SPECULATIVE: Final[dict[str, Any]] = {"hello": 1, "speculativeAuthenticate": {**AUTHENTICATE, "db": "$external"}}
CLIENT_NAME: Final = "CN=client,OU=clients,O=shardwright"
MEMBER_NAME: Final = "CN=member,OU=servers,O=shardwright"
ROUTER, SHARD, CONFIG, MONGOD = "router.0", "shard0.0.shardd", "config.0.configd", "shard0.0.mongod"
DAEMONS: Final = (ROUTER, SHARD, CONFIG)
BY_MEMBER_ALONE: Final = "TLS ends at this daemon: log in with a certificate at a router"
IN_MONGOSH: Final = """
const goods = db.getSiblingDB("shop").goods, session = db.getMongo().startSession();
session.startTransaction();
const inside = session.getDatabase("shop").goods;
inside.updateOne({_id: 1}, {$set: {by: "mongosh"}});
inside.updateOne({_id: 1900}, {$set: {by: "mongosh"}});
session.commitTransaction();
print(EJSON.stringify({user: db.runCommand({connectionStatus: 1}).authInfo.authenticatedUsers[0].user,
                       changed: goods.countDocuments({by: "mongosh"})}));
"""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster; a router of two processes, which recognise each other by certificates too."""
    size = ("--shards", "2", "--members", "1", "--config-members", "1", "--workers", "2")
    options = ("--auth", "--tls", "--cluster-auth-mode", "x509")
    with running_cluster(tmp_path_factory.mktemp("members"), *options, *size) as cluster:
        with cluster.client() as client:
            client.admin.command("shardCollection", "shop.goods", key={"_id": 1})
            client.shop.goods.insert_many([{"_id": number, "text": "x" * 2000} for number in range(2000)])
            client["$external"].command("createUser", CLIENT_NAME, roles=[{"role": "readWrite", "db": "shop"}])
        yield cluster


@pytest.fixture(scope="module")
def certificate_for_mongods(members: RunningCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's certificate that the mongods accept, because the servers' authority has signed it."""
    files = files_of(members)
    path = tmp_path_factory.mktemp("client") / "client.pem"
    path.write_text(Authority.load(files.directory / "ca-key.pem", files.ca_file).issue("clients", "client", ()))
    return path


def files_of(cluster: RunningCluster) -> TlsFiles:
    return TlsFiles(cluster.directory / "tls")


def anonymous(cluster: RunningCluster, process: str, file: Path | None = None) -> Client:
    """A client with a certificate, the one for clients by default, that has not logged in."""
    shown = file or files_of(cluster).client_file
    options = {**cluster.tls, "tlsCertificateKeyFile": str(shown), "username": None}
    return cluster.direct(process, **options)


def answer(client: Client, db: str, command: dict[str, Any]) -> dict[str, Any]:
    """The reply, without what depends on the moment."""
    try:
        reply: dict[str, Any] = client[db].command(command)
    except OperationFailure as error:
        reply = dict(error.details or {})
    return {name: reply[name] for name in ("ok", "code", "codeName", "errmsg", "dbname", "user") if name in reply}


def users_of(client: Client) -> list[str]:
    status = client.admin.command("connectionStatus")["authInfo"]
    return [f"{each['user']}@{each['db']}" for each in status["authenticatedUsers"]]


def test_there_is_no_key(members: RunningCluster) -> None:
    assert "keyFile" not in members.document["auth"]
    assert not (members.directory / "auth" / "key").exists()


def test_chunks_move_and_collections_change(members: RunningCluster) -> None:
    with members.client() as client:
        owner = client.config.chunks.distinct("shard")[0]
        (other,) = {each["_id"] for each in client.admin.command("listShards")["shards"]} - {owner}
        client.admin.command("split", "shop.goods", middle={"_id": 1000})
        client.admin.command("moveChunk", "shop.goods", find={"_id": 0}, to=other)
        assert [each["_id"] for each in client.shop.goods.find().sort("_id", -1)] == list(range(1999, -1, -1))
        client.shop.goods.create_index("text")
        client.shop.goods.aggregate([{"$match": {"_id": {"$lt": 5}}}, {"$out": "few"}])
        client.shop.few.rename("fewer")
        client.admin.command("shardCollection", "shop.hashed", key={"_id": "hashed"})
        client.shop.hashed.insert_many([{"_id": number} for number in range(50)])
        assert client.shop.hashed.count_documents({}) == 50
        client.shop.hashed.drop()
        assert client.shop.list_collection_names(filter={"name": {"$in": ["few", "fewer", "hashed"]}}) == ["fewer"]


def test_a_user_in_mongosh_commits_on_two_shards(members: RunningCluster) -> None:
    files = files_of(members)
    options = ["--tls", "--tlsCAFile", str(files.ca_file), "--tlsCertificateKeyFile", str(files.client_file)]
    words = [find_mongosh(), members.uri, *options, "--authenticationMechanism", X509, "--quiet", "--norc"]
    completed = subprocess.run([*words, "--eval", IN_MONGOSH], capture_output=True, text=True, timeout=90, check=False)
    assert completed.stdout.strip(), completed.stderr
    assert json.loads(completed.stdout) == {"user": CLIENT_NAME, "changed": 2}


@pytest.mark.parametrize("process", DAEMONS)
def test_a_member_is_the_system_everywhere(members: RunningCluster, process: str) -> None:
    seen = []
    for each in (process, MONGOD):
        with anonymous(members, each, files_of(members).member_file) as client:
            seen.append((answer(client, "$external", AUTHENTICATE), users_of(client)))
            client.admin.command("getParameter", 1, clusterAuthMode=1)
    assert seen[0] == seen[1] == ({"ok": 1.0, "dbname": "$external", "user": MEMBER_NAME}, ["__system@local"])


@pytest.mark.parametrize("process", DAEMONS)
def test_a_client_of_the_same_authority_is_no_member(members: RunningCluster, process: str) -> None:
    with anonymous(members, process) as client:
        if process == ROUTER:
            assert answer(client, "$external", AUTHENTICATE)["ok"] == 1.0
            assert users_of(client) == [f"{CLIENT_NAME}@$external"]
        else:
            assert answer(client, "$external", AUTHENTICATE)["errmsg"] == BY_MEMBER_ALONE
            assert users_of(client) == []
        for internal in ({"_shardsvrDropDatabase": 1}, {"_configsvrBalancerStop": 1}, {"_flushRouterConfig": 1}):
            assert answer(client, "admin", internal)["code"] in (13, 59)


@pytest.mark.parametrize("process", DAEMONS)
@pytest.mark.parametrize(
    ("db", "command"),
    [
        ("$external", {**AUTHENTICATE, "user": MEMBER_NAME}),
        ("admin", AUTHENTICATE),
        ("$external", {"authenticate": 1, "mechanism": "SCRAM-SHA-256"}),
        ("$external", {"saslStart": 1, "mechanism": X509, "payload": b""}),
    ],
    ids=["a member's name", "another database", "another mechanism", "a conversation"],
)
def test_the_tricks_of_clients_are_refused_as_by_a_mongod(
    members: RunningCluster, certificate_for_mongods: Path, process: str, db: str, command: dict[str, Any]
) -> None:
    answers = []
    for each, file in ((process, None), (MONGOD, certificate_for_mongods)):
        with anonymous(members, each, file) as client:
            answers.append(answer(client, db, command))
            assert users_of(client) == []
    assert answers[0] == answers[1]


@pytest.mark.parametrize("process", [SHARD, CONFIG])
@pytest.mark.parametrize("file", ["client", "member"])
def test_a_guess_in_hello_does_not_reach_the_mongod(members: RunningCluster, process: str, file: str) -> None:
    """The daemon's own connection to its mongod has the certificate of a member."""
    with anonymous(members, process, members.directory / "tls" / f"{file}.pem") as client:
        assert "speculativeAuthenticate" not in client.admin.command(SPECULATIVE)
        assert users_of(client) == []


@pytest.mark.parametrize("process", [SHARD, CONFIG])
@pytest.mark.parametrize("file", ["client", None], ids=["client's certificate", "plain"])
def test_a_unix_socket_makes_nobody_a_member(members: RunningCluster, process: str, file: str | None) -> None:
    path = members.directory / "sockets" / f"{members.address(process)}.sock"
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(20)
        plain.connect(str(path))
        if file is None:
            code = exchange(plain, {**AUTHENTICATE, "$db": "$external"})["code"]
        else:
            context = ssl.create_default_context(cafile=str(files_of(members).ca_file))
            context.check_hostname = False
            context.load_cert_chain(members.directory / "tls" / f"{file}.pem")
            with context.wrap_socket(plain) as secured:
                code = exchange(secured, {**AUTHENTICATE, "$db": "$external"})["code"]
    assert code == 18


def exchange(stream: socket.socket, command: dict[str, Any]) -> dict[str, Any]:
    stream.sendall(op_msg(bson.encode(command), request_id=1))
    with stream.makefile("rb") as reader:
        length = reader.read(4)
        reply = reader.read(int.from_bytes(length, "little") - 4)
    return bson.decode(reply[17:])


@pytest.mark.parametrize("process", DAEMONS)
@pytest.mark.parametrize(
    ("db", "command"),
    [
        ("$external", {"createUser": "CN=x,O=shardwright,OU=servers", "roles": []}),
        ("admin", {"setParameter": 1, "clusterAuthMode": "sendX509"}),
        ("admin", {"setParameter": 1, "clusterAuthMode": "x509"}),
        ("admin", {"setParameter": 1, "clusterAuthMode": "X509"}),
        ("admin", {"getParameter": {"showDetails": True}, "clusterAuthMode": 1}),
    ],
    ids=["a user named as a member", "back", "the same", "unknown", "details"],
)
def test_commands_about_it_answer_as_a_mongod(
    members: RunningCluster, process: str, db: str, command: dict[str, Any]
) -> None:
    answers = []
    for each in (process, MONGOD):
        with members.direct(each) as client:
            answers.append((answer(client, db, command), client.admin.command("getParameter", 1, clusterAuthMode=1)))
    (refused, value), (expected, of_mongod) = answers
    assert refused == expected
    assert value["clusterAuthMode"] == of_mongod["clusterAuthMode"] == "x509"


@pytest.mark.parametrize("process", DAEMONS)
def test_no_key_logs_in(members: RunningCluster, process: str) -> None:
    with (
        Client(
            f"mongodb://{members.address(process)}/",
            directConnection=True,
            username="__system",
            password="a" * 60,
            authSource="local",
            authMechanism="SCRAM-SHA-256",
            **members.tls,
        ) as client,
        pytest.raises(OperationFailure) as caught,
    ):
        client.admin.command("getParameter", 1, clusterAuthMode=1)
    assert caught.value.code == 18
