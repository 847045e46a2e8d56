"""Checking whether a process that was just started is ready.

Processes do not announce readiness, so callers poll these functions at short intervals; `deploy.start` limits how long.
"""

import http.client
import socket

from shardwright.deploy.topology import ProcessPlan, Role

# Seconds that one check may take.
LOOK_TIMEOUT = 2.0


def is_ready(plan: ProcessPlan, address: str) -> bool:
    """Whether clients can use the process: a mongod listens, or a daemon's ``/readyz`` says so.

    Args:
        plan: the process.
        address: see `ClusterState.address`.
    """
    if plan.role is Role.MONGOD:
        return _is_listening(address)
    assert plan.metrics_port is not None
    return _answers_ready(plan.metrics_port)


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    family, target = (socket.AF_INET, (host, int(port))) if port.isdecimal() else (socket.AF_UNIX, address)
    with socket.socket(family) as connection:
        connection.settimeout(LOOK_TIMEOUT)
        return connection.connect_ex(target) == 0


def _answers_ready(metrics_port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=LOOK_TIMEOUT)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
