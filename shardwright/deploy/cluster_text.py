"""Text about a cluster for people: its processes, its moves, and the command to connect."""

import shlex
from pathlib import Path
from typing import Any

from shardwright.deploy.layout import Layout
from shardwright.deploy.migrations import migration_text
from shardwright.deploy.reshardings import resharding_text
from shardwright.deploy.topology import Role


def cluster_text(document: dict[str, Any]) -> str:
    """Format the document of `status --json` for people."""
    parts = [_process_table(document)]
    if document["migrations"]:
        parts.append("\n".join(map(migration_text, document["migrations"])))
    if document["reshardings"]:
        parts.append("\n".join(map(resharding_text, document["reshardings"])))
    return "\n\n".join([*parts, _what_to_do(document)])


def _what_to_do(document: dict[str, Any]) -> str:
    """Say how to connect, or how to start a router first."""
    layout, processes = Layout(Path(document["dir"])), document["processes"]
    routers = [process for process in processes if process["role"] == Role.ROUTER]
    if any(router["pid"] for router in routers):
        return how_to_connect(document)
    if any(process["pid"] for process in processes):
        return f"no router is running: start one with `{layout.command('restart', routers[0]['name'])}`"
    return f"the cluster is stopped: start it with `{layout.command('up')}`"


def how_to_connect(document: dict[str, Any]) -> str:
    """Return the mongosh command line for the cluster that `LocalCluster.describe` describes."""
    access, tls = document.get("auth"), document.get("tls")
    words = ["mongosh"]
    if access is not None:
        words += ["--username", access["user"]]
    if tls is not None:
        words += ["--tls", "--tlsCAFile", tls["caFile"], "--tlsCertificateKeyFile", tls["clientCertificateFile"]]
    shown = f"connect with: {shlex.join([*words, document['uri']])}"
    if access is None:
        return shown
    return f"{shown}\nwhich asks for the password; it is in {access['passwordFile']}"


def _process_table(document: dict[str, Any]) -> str:
    rows = [("NAME", "ADDRESS", "METRICS", "PID", "LOG")]
    for process in document["processes"]:
        name = process["name"]
        pid = str(process["pid"]) if process["pid"] else "not running"
        rows.append((name, process["address"], document["metrics"].get(name, "-"), pid, process["log"]))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows)
