"""``features``: a relic, requested by old shells."""

import secrets

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply

_MACHINE_BITS = 32


class _Machine:
    """The part of new ObjectIds that identifies the machine."""

    def __init__(self) -> None:
        self.number = secrets.randbits(_MACHINE_BITS)


_MACHINE = _Machine()


@command("features", arguments=("oidReset",))
async def features(operation: Operation) -> Reply:
    """The features of this server; oidReset makes it choose another machine number for ObjectIds."""
    reset = {}
    if operation.argument(b"oidReset"):
        reset["oidMachineOld"] = _MACHINE.number
        _MACHINE.number = secrets.randbits(_MACHINE_BITS)
    return {"js": {"utf8": True}, **reset, "oidMachine": _MACHINE.number}
