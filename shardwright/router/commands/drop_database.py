"""``dropDatabase``."""

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import command_body
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.reply_fields import answer_of
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import missing_field

_NOT_ONE = 5255100


@command("dropDatabase", api_versions=("1",), supports_write_concern=True, arguments=())
async def drop_database(operation: Operation) -> Reply:
    """Drops a database with all its collections; one that does not exist is fine."""
    db = operation.request.db
    arguments = Arguments.of(operation.request)
    if db in ("config", "admin"):
        raise CommandError(ErrorCode.IllegalOperation, f"Cannot drop the {db} database")
    wanted = arguments.maybe_integer(b"dropDatabase", minimum=None)
    if wanted is None:
        raise missing_field("dropDatabase.dropDatabase")
    if wanted != 1:
        raise CommandError(_NOT_ONE, "Have to pass 1 as 'drop' parameter")
    body = command_body(db, {"_shardsvrDropDatabase": 1})
    try:
        return answer_of(await send_to_primary_shard(operation, db, body, may_repeat=True))
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return {"info": "database does not exist"}
    finally:
        operation.context.routing.forget_database(db)
