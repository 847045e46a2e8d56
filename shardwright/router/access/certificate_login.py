"""Log-ins with the certificate of the connection (MONGODB-X509): its subject is the name of a user of ``$external``.

A certificate with the organization of this server's own is that of a member of the cluster, and no user's. Members log
in with the key, as with MongoDB's ``clusterAuthMode: keyFile``.
"""

from typing import Final

from shardwright.daemon.user_names import UserName
from shardwright.router.access.scram_login import log_failure
from shardwright.router.access.user_cache import UserCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.tls.process_tls import TLS
from shardwright.wire.tls.subject_names import organization_of, subject_text
from shardwright.wire.transport.client_connection import ClientConnection

EXTERNAL: Final = "$external"


async def log_in_with_certificate(
    users: UserCache, client: ClientConnection, db: str, user: str | None, addresses: tuple[str | None, str | None]
) -> UserName:
    """Log a client in; returns who it is.

    Args:
        users: the users of the cluster.
        client: whose connection has the certificate.
        db: of the user according to the client.
        user: the user's name according to the client, if it gives any.
        addresses: of the client and the server, for `Restrictions.are_met`.

    Raises:
        CommandError: ProtocolError, the database is another; UserNotFound; AuthenticationFailed, anything else is
            wrong.
    """
    if db != EXTERNAL:
        raise CommandError(ErrorCode.ProtocolError, "X.509 authentication must always use the $external database.")
    subject = client.certificate_subject
    if not subject:
        raise _failed("No verified subject name available from client")
    name = UserName(subject_text(subject), EXTERNAL)
    if user is not None and user != name.user:
        raise _failed("There is no x.509 client certificate matching the user.")
    organization = organization_of(subject)
    if organization and organization == TLS.organization:
        raise _failed(
            "The provided certificate can only be used for cluster authentication, not client authentication. The "
            "current configuration does not allow x.509 cluster authentication, check the --clusterAuthMode flag"
        )
    found = await users.read(name)
    if found is None:
        log_failure(name, "there is no such user")
        raise CommandError(ErrorCode.UserNotFound, f'Could not find user "{name.user}" for db "{EXTERNAL}"')
    if not found.restrictions.are_met(*addresses):
        log_failure(name, "restrictions are not met")
        raise _failed("Authentication failed.")
    client.login.complete(name, found.user_id)
    return name


def _failed(message: str) -> CommandError:
    return CommandError(ErrorCode.AuthenticationFailed, message)
