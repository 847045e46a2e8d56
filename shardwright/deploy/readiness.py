"""HTTP requests to a process, and the check whether one that was just started is ready.

Processes do not announce readiness, so callers poll these functions at short intervals. `deploy.start` has the
deadline.
"""

import http.client
import socket
from typing import NamedTuple

from shardwright.deploy.topology import ProcessPlan, Role

# Seconds that one check may take.
LOOK_TIMEOUT = 2.0


def is_ready(plan: ProcessPlan, address: str) -> bool:
    """Whether clients can use the process: a mongod listens, or a daemon's ``/readyz`` succeeds."""
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
    answer = ask(f"127.0.0.1:{metrics_port}", "/readyz")
    return answer is not None and answer.status == http.HTTPStatus.OK


class Answer(NamedTuple):
    """The answer of a daemon's HTTP endpoint.

    Attributes:
        version: the daemon's version; empty if the headers lack it.
    """

    status: int
    version: str
    text: str


def ask(address: str, path: str, seconds: float = LOOK_TIMEOUT) -> Answer | None:
    """Request a page of a daemon's HTTP endpoint; None if there is no answer in time.

    Args:
        path: ``/metrics``, ``/healthz`` or ``/readyz``.
        seconds: the limit for each step.
    """
    connection = http.client.HTTPConnection(address, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        server = response.getheader("Server") or ""
        return Answer(response.status, server.partition("/")[2], response.read().decode())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
