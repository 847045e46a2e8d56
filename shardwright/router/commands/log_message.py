"""``logMessage``, with which tests mark a place in the log."""

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.logger import get_logger

logger = get_logger("router.commands")


@command("logMessage", admin_only=True, test_only=True)
async def log_message(operation: Operation) -> Reply:
    """Writes a line into the log of the process of this connection."""
    arguments = Arguments.of(operation.request, "logMessage")
    arguments.refuse_unknown((b"logMessage", b"extra", b"severity", b"options"))
    message, severity = arguments.string(b"logMessage"), arguments.maybe_string(b"severity")
    extra = arguments.maybe_nested(b"extra")
    fields = {} if extra is None else arguments.value(b"extra")
    log = {"warning": logger.warning, "error": logger.error}.get(severity or "", logger.info)
    log("logMessage", text=message, extra=fields)
    return {}
