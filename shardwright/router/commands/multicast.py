"""``multicast``: a command on every server of the cluster, for tests."""

from time import perf_counter
from typing import Any, Final

import trio

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.rawbson import decode_document

_TIMEOUT_SECONDS: Final = 5.0


@command("multicast", admin_only=True, test_only=True)
async def multicast(operation: Operation) -> Reply:
    """Runs a command on each config server and each member of each shard."""
    context, arguments = operation.context, Arguments.of(operation.request)
    command_body = decode_document(arguments.raw(b"multicast"))
    db = arguments.maybe_string(b"db") or "admin"
    await context.shards.all_ids()
    monitors = [context.catalog.client.monitor, *(shard.client.monitor for shard in context.shards.known())]
    answers: dict[str, Any] = {}

    async def ask(address: str) -> None:
        started = perf_counter()
        try:
            with trio.fail_after(_TIMEOUT_SECONDS):
                data: dict[str, Any] = await context.pools[address].command(db, command_body)
        except CommandError as error:
            data = error.reply()
        except (BackendError, trio.TooSlowError) as error:
            data = {"ok": 0.0, "errmsg": str(error) or "timed out"}
        milliseconds = int((perf_counter() - started) * 1000)
        answers[address] = {"ok": data["ok"], "data": data, "elapsedMillis": milliseconds}

    async with trio.open_nursery() as nursery:
        for monitor in monitors:
            for address in monitor.members:
                nursery.start_soon(ask, address)
    return {"hosts": dict(sorted(answers.items()))}
