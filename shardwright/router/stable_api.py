"""The Stable API: ``apiVersion``, ``apiStrict`` and ``apiDeprecationErrors``.

The router checks the command. It passes the arguments on to the shards' mongods, which check the contents of commands
with ``apiStrict``.
"""

from typing import Final

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_command import RouterCommand
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.server import LOCAL_PEER

API_FIELDS: Final = (b"apiVersion", b"apiStrict", b"apiDeprecationErrors")

_VERSION_REQUIRED: Final = 498870
_NO_VERSION: Final = 4886600
_UNRELEASED: Final = "2"
"""A version in MongoDB's code that is never accepted."""


def require_api_version(operation: Operation, _: RouterCommand) -> None:
    """Refuse a command without ``apiVersion`` under ``requireApiVersion``, unless a router process sent it.

    Raises:
        CommandError: 498870.
    """
    request = operation.request
    if all(request.get(name) is None for name in API_FIELDS) and operation.client.peer != LOCAL_PEER:
        raise CommandError(
            _VERSION_REQUIRED,
            "The apiVersion parameter is required, please configure your MongoClient's API version",
        )


def check_api_arguments(operation: Operation, entry: RouterCommand) -> None:
    """Check a command's Stable API arguments.

    Raises:
        CommandError: TypeMismatch; 4886600 if the version is missing; APIVersionError, APIStrictError,
            APIDeprecationError.
    """
    arguments = Arguments.of(operation.request, "APIParametersFromClient")
    version = arguments.maybe_string(b"apiVersion")
    is_strict = arguments.boolean(b"apiStrict", strictness=Strictness.BOOL)
    refuses_deprecated = arguments.boolean(b"apiDeprecationErrors", strictness=Strictness.BOOL)
    if version is None:
        if any(arguments.has(name) and not arguments.is_null(name) for name in API_FIELDS[1:]):
            raise CommandError(_NO_VERSION, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion")
        return
    _check_version(version)
    name = entry.name
    if is_strict and version not in entry.api_versions:
        raise CommandError(
            ErrorCode.APIStrictError,
            f"Provided apiStrict:true, but the command {name} is not in API Version {version}. Information on "
            f"supported commands and migrations in API Version {version} can be found at "
            "https://dochub.mongodb.org/core/manual-versioned-api",
        )
    if refuses_deprecated and version in entry.deprecated_api_versions:
        raise CommandError(
            ErrorCode.APIDeprecationError,
            f"Provided apiDeprecationErrors:true, but the command {name} is deprecated in API Version {version}",
        )


def _check_version(version: str) -> None:
    if version == _UNRELEASED:
        raise CommandError(ErrorCode.APIVersionError, f"Cannot accept API version {version}")
    if version != "1":
        raise CommandError(ErrorCode.APIVersionError, 'API version must be "1"')
