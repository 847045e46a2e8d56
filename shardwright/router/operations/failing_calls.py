"""The fail point ``failCommand``, which makes commands wait or fail before they start."""

from collections.abc import Collection

import trio

from shardwright.daemon.fail_command import FAIL_COMMAND, CommandCall, block_seconds, fails_before, raise_failure
from shardwright.daemon.namespaces import namespace_of
from shardwright.router.operations.operation import Operation
from shardwright.wire.hello import HELLO_NAMES, MONGOS_BYTES_MAX, parse_client_metadata


def call_of(operation: Operation, names: Collection[str]) -> CommandCall:
    """Return the properties of a command that the fail point can select.

    Raises:
        CommandError: a first hello has malformed client metadata.
    """
    namespace, thread_name = namespace_of(operation.request), f"conn{operation.client.id}"
    return CommandCall(set(names), namespace, _app_name(operation), thread_name)


async def fail_if_asked(operation: Operation, call: CommandCall) -> None:
    """Wait or fail, if the fail point is on for this command.

    Raises:
        CommandError: the fail point's error, which may also close the connection.
    """
    data = operation.context.fail_points.should_fail(FAIL_COMMAND, lambda data: fails_before(data, call))
    if data is not None:
        await trio.sleep(block_seconds(data))
        raise_failure(data)


def _app_name(operation: Operation) -> str:
    """Return the name of the client's application; a first hello itself contains it."""
    client, request = operation.client, operation.request
    if client.metadata is not None:
        return client.app_name
    span = request.fields.get(b"client") if request.name in HELLO_NAMES else None
    return "" if span is None else parse_client_metadata(request.body, span, bytes_max=MONGOS_BYTES_MAX).app_name
