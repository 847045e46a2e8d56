"""``logRotate`` and ``rotateCertificates``, which sidecar and mongod both execute: clients see them as one server."""

from collections.abc import Mapping
from typing import Any, Final

import trio

from shardwright.daemon.certificates import ROTATE_CERTIFICATES, rotate_certificates
from shardwright.daemon.log_rotation import AUDIT, DaemonLogs
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import reply_document
from shardwright.wire.rawbson import is_string
from shardwright.wire.request import Request
from shardwright.wire.transport.client import decode_reply
from shardwright.wire.transport.timeouts import TIMEOUTS

logger = get_logger("daemon.tls")

_LOG_ROTATE: Final = "logRotate"

ROTATIONS: Final = frozenset({_LOG_ROTATE, ROTATE_CERTIFICATES})
"""The commands."""

_OF_ERRORS: Final = frozenset({"errmsg", "code", "codeName"})


async def rotate_both(upstream: Upstream, request: Request, logs: DaemonLogs) -> bytes | None:
    """Execute one of the `ROTATIONS` on the mongod, which checks it, then on the daemon; return the mongod's reply.

    Without a reply the client's privilege is unknown, and the daemon does nothing.

    Raises:
        CommandError: FileRenameFailed or InvalidSSLConfiguration, the daemon's part failed; the mongod's is done.
        BackendError: the mongod is gone.
    """
    reply = await upstream.forward(request.message.frame, request.message.flags)
    if reply is None:
        return None
    answer = decode_reply(reply)
    named = request.get(_LOG_ROTATE.encode())
    if _has_no_audit_log(answer, named) and AUDIT in logs.kinds:
        answer = {name: value for name, value in answer.items() if name not in _OF_ERRORS} | {"ok": 1.0}
        reply = reply_document(request.message.request_id, answer)
    if answer["ok"]:
        if request.name == ROTATE_CERTIFICATES:
            rotate_certificates()
        elif not is_string(named) or named in logs.kinds:
            logs.rotate_for_client(named if is_string(named) else None)
    return reply


async def rotate_certificates_of_both(mongod: LocalMongod, message: str) -> None:
    """Reload the certificates of the mongod, then of the daemon, after a signal, which only the daemon receives.

    An unreachable mongod reads them when it starts, and one without TLS has nothing to read.

    Args:
        message: for the logs of both.

    Raises:
        CommandError: InvalidSSLConfiguration, one of the two cannot use a file. If it is the mongod, the daemon keeps
            its certificates too.
    """
    try:
        with trio.fail_after(TIMEOUTS.hello_seconds):
            await mongod.pool.command("admin", {ROTATE_CERTIFICATES: 1, "message": message})
    except (BackendError, CommandError, trio.TooSlowError) as error:
        logger.error("The mongod did not rotate its certificates", error=str(error) or "it does not answer")
        if isinstance(error, CommandError) and error.code == ErrorCode.InvalidSSLConfiguration:
            raise
    rotate_certificates(message)


def _has_no_audit_log(answer: Mapping[str, Any], named: Any) -> bool:  # noqa: ANN401 - whatever a client sent
    """Whether the mongod refused only because it has no audit log, so that the client has the privilege."""
    return named == AUDIT and answer.get("code") == ErrorCode.NoSuchKey
