"""What clients ask when they connect: ``ping``, ``buildInfo``, ``connectionStatus``, ``whatsmyuri``, ``hostInfo``."""

import os
import platform
import ssl
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bson.int64 import Int64

from shardwright.router.commands.command_registry import command
from shardwright.router.context.version import MONGODB_VERSION, MONGODB_VERSION_ARRAY
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX

_POINTER_BITS: Final = struct.calcsize("P") * 8


@command("ping", api_versions=("1",), arguments=())
async def ping(operation: Operation) -> Reply:
    """Answers."""
    return {}


@command("buildInfo", aliases=("buildinfo",))
async def build_info(operation: Operation) -> Reply:
    """The version of MongoDB that this router is compatible with."""
    return {
        "version": MONGODB_VERSION,
        "gitVersion": "",
        "modules": ["shardwright"],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": list(MONGODB_VERSION_ARRAY),
        "openssl": {"running": ssl.OPENSSL_VERSION, "compiled": ssl.OPENSSL_VERSION},
        "buildEnvironment": {
            "distmod": "python",
            "distarch": platform.machine(),
            "cc": platform.python_compiler(),
            "target_arch": platform.machine(),
            "target_os": platform.system().lower(),
        },
        "bits": _POINTER_BITS,
        "debug": False,
        "maxBsonObjectSize": BSON_OBJECT_BYTES_MAX,
    }


@command("whatsmyuri")
async def whats_my_uri(operation: Operation) -> Reply:
    """The client's address as the router sees it."""
    return {"you": operation.client.peer}


@command("echo", test_only=True)
async def echo(operation: Operation) -> Reply:
    """Returns the command."""
    return {"echo": operation.request.document}


@command("hostInfo", arguments=())
async def host_info(operation: Operation) -> Reply:
    """The machine and the operating system that this router runs on."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory_mb = pages * page_bytes >> 20
    cores = os.cpu_count() or 1
    return {
        "system": {
            "currentTime": datetime.now(UTC),
            "hostname": operation.context.options.address,
            "cpuAddrSize": _POINTER_BITS,
            "memSizeMB": Int64(memory_mb),
            "memLimitMB": Int64(memory_mb),
            "numCores": cores,
            "cpuArch": platform.machine(),
            "numaEnabled": False,
        },
        "os": {
            "type": platform.system(),
            "name": _distribution(),
            "version": f"Kernel {platform.release()}",
        },
        "extra": {
            "versionString": platform.version(),
            "libcVersion": platform.libc_ver()[1],
            "kernelVersion": platform.release(),
            "pageSize": Int64(page_bytes),
            "numPages": pages,
        },
    }


def _distribution() -> str:
    release = Path("/etc/os-release")
    lines = release.read_text(encoding="utf-8").splitlines() if release.exists() else []
    return next((line for line in lines if line.startswith("PRETTY_NAME=")), platform.system())
