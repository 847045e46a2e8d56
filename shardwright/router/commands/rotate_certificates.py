"""``rotateCertificates``: the files are read again by this router, all its processes included."""

from shardwright.daemon.certificate_rotation import ROTATE_CERTIFICATES, rotate_certificates
from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.workers import tell_supervisor_certificates_changed
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.arguments import Arguments


@command(ROTATE_CERTIFICATES, admin_only=True, arguments=("message",))
async def rotate(operation: Operation) -> Reply:
    """Reads certificates, keys, authorities and revocation lists again; without TLS there are none."""
    rotate_certificates(Arguments.of(operation.request).maybe_string(b"message"))
    tell_supervisor_certificates_changed(operation.context.options)
    return {}
