"""Checking whether a process that was just started is ready.

Processes do not announce readiness, so callers poll these functions at short intervals; `deploy.start` limits how long.
"""

import http.client
import socket

from shardwright.deploy.topology import ProcessPlan, Role

# Seconds that one check may take.
LOOK_TIMEOUT = 2.0


def is_ready(plan: ProcessPlan) -> bool:
    """Whether clients can use the process: a mongod listens, or a daemon's ``/readyz`` says so."""
    if plan.role is Role.MONGOD:
        return _is_listening(plan.port)
    assert plan.metrics_port is not None
    return _answers_ready(plan.metrics_port)


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), LOOK_TIMEOUT).close()
    except OSError:
        return False
    return True


def _answers_ready(metrics_port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=LOOK_TIMEOUT)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
