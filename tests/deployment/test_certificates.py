"""A host whose key stays there, in a cluster without a shared key: members recognise each other by certificates."""

from collections.abc import Iterator
from typing import Final

import pytest

from shardwright.deploy.mongod import find_mongod
from tests.deployment.namespaces import Host, hosts, why_not
from tests.deployment.page import blocks

HOST: Final = "a.example.net"
OWN: Final = "workstation.example.net"
DESCRIPTION: Final = f"""\
hosts: {{{HOST}: 10.0.0.1}}
config: {{members: [{HOST}], cacheGB: 0.25}}
shards:
  shard0: {{members: [{HOST}], cacheGB: 0.25}}
routers: {{members: [{HOST}]}}
security: {{clusterAuthMode: x509, certificates: requested}}
"""

MISSING: Final = why_not()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no hosts of its own: {MISSING}")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    """A host and the workstation."""
    with hosts(tmp_path_factory.mktemp("pair"), {HOST: "10.0.0.1", OWN: "10.0.0.100"}, OWN, find_mongod()) as found:
        yield found[HOST], found[OWN]


def run(host: Host, script: str, stdin: str = "") -> str:
    completed = host.run(script, stdin=stdin)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_a_key_stays_on_its_host(pair: tuple[Host, Host]) -> None:
    host, workstation = pair
    run(host, next(block.script for block in blocks() if block.section == "Install"))
    run(workstation, "cat > cluster.yaml; shardwright plan cluster.yaml --write", DESCRIPTION)
    run(workstation, f"scp -r hosts/{HOST}/. root@{HOST}:/etc/shardwright")
    # The commands of hosts/steps.txt, with the request and the certificate going through this test.
    assert f"shardwright certs request {HOST} 10.0.0.1 --key /etc/shardwright/host.key" in run(
        workstation, "cat hosts/steps.txt"
    )
    folder = "/run/request"
    run(host, f"mkdir {folder}; cd {folder}; shardwright certs request {HOST} 10.0.0.1 --key /etc/shardwright/host.key")
    request = run(host, f"cat {folder}/{HOST}.csr")
    run(workstation, f"cd hosts; cat > {HOST}.csr; shardwright certs sign {HOST}.csr", request)
    certificate = run(workstation, f"cat hosts/{HOST}.crt")
    assert "PRIVATE" not in request + certificate
    run(host, "umask 077; cat - /etc/shardwright/host.key > /etc/shardwright/host.pem", certificate)
    run(host, "systemctl enable --now $(cat /etc/shardwright/units)")
    run(host, "shardwright init-set config; shardwright init-set shard0")
    assert run(host, "ls /etc/shardwright/key 2>/dev/null || echo none") == "none\n"
    script = "db.createUser({ user: 'root', pwd: 'secret', roles: ['root'] })"
    run(host, f'mongosh --quiet --tls --tlsCAFile /etc/shardwright/ca.pem admin --eval "{script}"')
    uri = f"mongodb://root:secret@{HOST}/?authSource=admin&tls=true&tlsCAFile=hosts/authority/ca.pem"
    shards = run(
        workstation, f"mongosh --quiet '{uri}' --eval \"db.adminCommand('listShards').shards.map(s => s.host)\""
    )
    assert "shard0/a.example.net:27018" in shards
