"""The processes of a cluster with their states, versions, ages and memory, for ``shardwright ps``."""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pymongo.errors import PyMongoError

from shardwright.deploy.mongod import connect
from shardwright.deploy.readiness import ask
from shardwright.deploy.topology import ProcessPlan, Role

ANSWER_SECONDS: Final = 2.0
"""Seconds within which a process must answer; a paused one is shown without its state."""

_UNKNOWN: Final = "no answer"
_STOPPED: Final = "stopped"


def processes_with_states(
    running: Mapping[ProcessPlan, int | None], addresses: Mapping[str, str], log_in: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return a document per process for `shardwright ps`.

    Its fields are ``name``, ``role``, ``pid``, ``state``, ``version``, ``uptimeSeconds`` and ``memoryBytes``. The state
    of a mongod is its member state. The state of a daemon is ``ready`` or the reason why it is not. Unknown values are
    None. A router's memory includes its workers.

    Args:
        running: the pids of processes, None for processes that do not run.
        addresses: the address of each process, by name.
    """
    with ThreadPoolExecutor(max_workers=len(running) or 1) as asking:
        found = [asking.submit(_described, plan, pid, addresses[plan.name], log_in) for plan, pid in running.items()]
        return [each.result() for each in found]


def process_table(processes: list[dict[str, Any]]) -> str:
    """Format the documents of `processes_with_states` for people."""
    rows = [("NAME", "ROLE", "STATE", "VERSION", "UPTIME", "MEMORY", "PID")]
    for each in processes:
        uptime, memory = each["uptimeSeconds"], each["memoryBytes"]
        rows.append(
            (
                each["name"],
                each["role"],
                each["state"],
                each["version"] or "-",
                "-" if uptime is None else duration_text(uptime),
                "-" if memory is None else f"{memory / 2**20:.0f} MiB",
                str(each["pid"] or "-"),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def duration_text(seconds: float) -> str:
    """Format a duration in its two largest units: ``3d 4h``."""
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    rest = int(seconds)
    parts: list[str] = []
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def _described(plan: ProcessPlan, pid: int | None, address: str, log_in: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": plan.name,
        "role": plan.role.value,
        "pid": pid,
        "state": _STOPPED,
        "version": None,
        "uptimeSeconds": None,
        "memoryBytes": None,
    }
    if pid is None:
        return document
    ask = _state_of_mongod(address, log_in) if plan.role is Role.MONGOD else _state_of_daemon(plan)
    return {**document, **ask, "uptimeSeconds": _uptime(pid), "memoryBytes": _memory(pid)}


def _state_of_mongod(address: str, log_in: Mapping[str, Any]) -> dict[str, Any]:
    with connect(address, ANSWER_SECONDS, log_in) as client:
        try:
            hello = client.admin.command("hello")
            version = client.admin.command("buildInfo")["version"]
        except PyMongoError:
            return {"state": _UNKNOWN}
    if hello.get("isWritablePrimary"):
        return {"state": "PRIMARY", "version": version}
    return {"state": "SECONDARY" if hello.get("secondary") else "NO ROLE", "version": version}


def _state_of_daemon(plan: ProcessPlan) -> dict[str, Any]:
    assert plan.metrics_port is not None
    answer = ask(f"127.0.0.1:{plan.metrics_port}", "/readyz", ANSWER_SECONDS)
    if answer is None:
        return {"state": _UNKNOWN}
    try:
        document = json.loads(answer.text)
    except ValueError:
        return {"state": _UNKNOWN}
    return {"state": document.get("reason") or document.get("status") or _UNKNOWN, "version": answer.version or None}


def _uptime(pid: int) -> float | None:
    """Return the seconds since a process was started."""
    try:
        started_ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, up - started_ticks / os.sysconf("SC_CLK_TCK"))


def _memory(pid: int) -> int | None:
    """Return the resident memory of a process and its children in bytes."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_memory(int(child)) or 0 for child in children)
