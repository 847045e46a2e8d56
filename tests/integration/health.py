"""Metrics and health of daemons over HTTP."""

import http.client


def http_get(address: str, path: str) -> tuple[int, str]:
    """Status and body of an HTTP GET."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def sample(address: str, name: str, *, daemon: str = "router") -> float:
    """The value of one sample of a daemon's metrics, named without the common prefix; 0 while it has no value.

    Raises:
        AssertionError: there is no such metric.
    """
    name = f"shardwright_{daemon}_{name}"
    lines = http_get(address, "/metrics")[1].splitlines()
    metric = name.partition("{")[0]
    assert any(line.startswith(f"# HELP {metric} ") for line in lines), f"there is no metric {metric}"
    return next((float(line.removeprefix(f"{name} ")) for line in lines if line.startswith(f"{name} ")), 0.0)
