"""``startRecordingTraffic`` and ``stopRecordingTraffic``, on a server that was started without a directory for them."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("startRecordingTraffic")
async def start_recording_traffic(operation: Operation) -> Reply:
    """Not available: this router has no parameter trafficRecordingDirectory."""
    arguments = Arguments.of(operation.request, "startRecordingTraffic")
    arguments.refuse_unknown((b"startRecordingTraffic", b"filename", b"bufferSize", b"maxFileSize"))
    arguments.string(b"filename")
    for name in (b"bufferSize", b"maxFileSize"):
        arguments.maybe_integer(name, minimum=None)
    raise CommandError(ErrorCode.BadValue, "Traffic recording directory not set")


@command("stopRecordingTraffic")
async def stop_recording_traffic(operation: Operation) -> Reply:
    """Fails, since no traffic is being recorded."""
    Arguments.of(operation.request, "stopRecordingTraffic").refuse_unknown((b"stopRecordingTraffic",))
    raise CommandError(ErrorCode.BadValue, "Traffic recording not active")
