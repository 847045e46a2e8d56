"""``_getNextSessionMods``, with which the recipient of a migration pulls the session history."""

from shardwright.shardd.commands.command_registry import RawReply, command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.migration.session_argument import migration_session_argument
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, array_of_documents, element
from shardwright.wire.request import Request


@command("_getNextSessionMods", admin_only=True)
async def get_next_session_mods(shard: ShardComponents, request: Request) -> RawReply:
    """The next batch of the migration's session history as ``oplog``, empty if there is no more at the moment.

    Our own field ``number`` numbers the batches from 0, so that one whose reply was lost can be requested again.

    Raises:
        CommandError: NotYetInitialized, this shard is not a donor; IllegalOperation, it is one in another migration
            session; BadValue, the number is neither that of the last batch nor the next.
    """
    session_id = migration_session_argument(request)
    database = shard.migrations.databases.source(session_id)
    donor = shard.migrations.donor.migration
    if database is not None:
        history = database.history
    elif donor is not None:
        history = await donor.wait_history(session_id)
    else:
        raise CommandError(ErrorCode.NotYetInitialized, "No active migrations were found")
    number = request.get(b"number")
    batch = await history.next_batch(None if number is None else int(number))
    return RawReply([element(b"oplog", ARRAY, array_of_documents(batch))])
