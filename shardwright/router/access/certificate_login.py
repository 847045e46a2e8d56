"""Log-ins with the certificate of the connection (MONGODB-X509), of ``$external`` users and members of the cluster."""

from shardwright.daemon.certificate_names import name_in_certificate
from shardwright.daemon.user_names import UserName
from shardwright.router.access.authorized_user import Addresses
from shardwright.router.access.login import LogInAttempt, authentication_failed
from shardwright.router.access.scram_login import log_failure
from shardwright.router.access.user_cache import UserCache
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.client_connection import ClientConnection


async def log_in_with_certificate(
    users: UserCache,
    client: ClientConnection,
    db: str,
    user: str | None,
    addresses: Addresses,
    attempt: LogInAttempt,
) -> UserName:
    """Log a client in with the certificate of its connection; return the name in the certificate.

    Args:
        db: the user's database according to the client.
        user: the user's name according to the client, if given.
        addresses: for `Restrictions.are_met`.

    Raises:
        CommandError: from `name_in_certificate`; UserNotFound; AuthenticationFailed, restrictions are not met.
    """
    name, becomes = name_in_certificate(client, db, user)
    user_id = b""
    if becomes.is_internal:
        attempt.is_of_cluster()
    else:
        found = await users.read(name)
        if found is None:
            log_failure(name, "there is no such user")
            raise CommandError(ErrorCode.UserNotFound, f'Could not find user "{name.user}" for db "{name.db}"')
        if not found.restrictions.are_met(addresses):
            log_failure(name, "restrictions are not met")
            raise authentication_failed()
        user_id = found.user_id
    client.login.complete(becomes, user_id, addresses)
    attempt.succeed()
    return name
