"""The user or cluster member named by a client certificate, for MONGODB-X509 authentication.

A certificate with this server's own organization belongs to a member, and never to a user.
"""

from shardwright.daemon.user_names import SYSTEM, UserName
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.tls.process_tls import TLS
from shardwright.wire.tls.subject_names import subject_text
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import CLUSTER_AUTH, EXTERNAL_DATABASE, WITH_CERTIFICATE


def check_mechanism(mechanism: str) -> None:
    """Refuse mechanisms of ``authenticate`` other than by certificate (BadValue or MechanismUnavailable)."""
    if mechanism.startswith("SCRAM-SHA-"):
        raise CommandError(ErrorCode.BadValue, f"Unsupported mechanism: {mechanism}")
    if mechanism != WITH_CERTIFICATE:
        raise CommandError(
            ErrorCode.MechanismUnavailable, f"Received authentication for mechanism {mechanism} which is not enabled"
        )


def name_in_certificate(client: ClientConnection, db: str, user: str | None) -> tuple[UserName, UserName]:
    """Return the name in a client's certificate and the identity to log in: the user, or the cluster's internal user.

    Args:
        db: the user's database according to the client.
        user: the user's name according to the client, if it sends any.

    Raises:
        CommandError: ProtocolError, the database is another; AuthenticationFailed, anything else is wrong.
    """
    subject = client.certificate_subject
    if not subject:
        raise _failed("No verified subject name available from client")
    if db != EXTERNAL_DATABASE:
        raise CommandError(ErrorCode.ProtocolError, "X.509 authentication must always use the $external database.")
    name = UserName(subject_text(subject), EXTERNAL_DATABASE)
    if user is not None and user != name.user:
        raise _failed("There is no x.509 client certificate matching the user.")
    if not TLS.is_member(subject):
        return name, name
    if not CLUSTER_AUTH.accepts_certificate:
        raise _failed(
            "The provided certificate can only be used for cluster authentication, not client authentication. The "
            "current configuration does not allow x.509 cluster authentication, check the --clusterAuthMode flag"
        )
    return name, SYSTEM


def _failed(message: str) -> CommandError:
    return CommandError(ErrorCode.AuthenticationFailed, message)
