"""Settings that all servers of a cluster have: cluster parameters, the feature compatibility version, blocked writes.

The config servers carry out the changes of the first two on all servers, one after the other.
"""

from typing import Final

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import MAJORITY
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.reply_fields import answer_in
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_TOO_OLD: Final = frozenset({"5.0", "5.3"})
"""The versions that mongods 6.0 can be set back to. With these they refuse ``collectionUUID``."""


@command("getClusterParameter", admin_only=True, reads=True)
async def get_cluster_parameter(operation: Operation) -> Reply:
    """The values of cluster parameters."""
    asked = {"getClusterParameter": operation.argument(b"getClusterParameter")}
    return answer_in(await operation.context.catalog.command(asked))


@command("setClusterParameter", admin_only=True)
async def set_cluster_parameter(operation: Operation) -> Reply:
    """Changes a cluster parameter on all servers."""
    change = {"_configsvrSetClusterParameter": operation.argument(b"setClusterParameter"), "writeConcern": MAJORITY}
    await operation.context.catalog.command(change)
    return {}


@command("setUserWriteBlockMode")
async def set_user_write_block_mode(operation: Operation) -> Reply:
    """Blocks the writes of users in the whole cluster, or allows them again."""
    arguments = Arguments.of(operation.request)
    arguments.refuse_unknown((b"setUserWriteBlockMode", b"global"))
    is_blocked = arguments.required_boolean(b"global", Strictness.BOOL)
    setting = {"_configsvrSetUserWriteBlockMode": 1, "global": is_blocked, "writeConcern": MAJORITY}
    await operation.context.catalog.command(setting)
    return {}


@command("setFeatureCompatibilityVersion", admin_only=True, supports_write_concern=True)
async def set_feature_compatibility_version(operation: Operation) -> Reply:
    """Enables or disables the features that an older version of MongoDB does not understand, on all servers."""
    name = b"setFeatureCompatibilityVersion"
    arguments = Arguments.of(operation.request)
    arguments.refuse_unknown((name,))
    version = arguments.string(name)
    if version in _TOO_OLD:
        # Migrations and changes of collections would fail, or be tried again for ever.
        raise CommandError(
            ErrorCode.CannotDowngrade,
            f"Cannot set featureCompatibilityVersion to {version}: shards name collections by UUID, which needs 6.0",
        )
    await operation.context.catalog.command({name.decode(): version, "writeConcern": MAJORITY})
    return {}
