"""Commands in and out of versions of the Stable API, with which drivers test it; they do nothing."""

from shardwright.router.commands.command_registry import CommandHandler, command
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply


def _named(summary: str) -> CommandHandler:
    async def succeed(operation: Operation) -> Reply:
        return {}

    succeed.__doc__ = summary
    return succeed


for _name, _versions, _deprecated in (
    ("testDeprecation", ("1",), ("1",)),
    ("testDeprecationInVersion2", ("1", "2"), ("2",)),
    ("testRemoval", ("1",), ()),
    ("testVersion2", ("2",), ()),
    ("testVersions1And2", ("1", "2"), ()),
):
    command(_name, api_versions=_versions, deprecated_api_versions=_deprecated, test_only=True)(
        _named(f"Is in the versions {' and '.join(_versions)} of the Stable API.")
    )
