"""Command arguments with a meaning for sharding: collections and versions."""

from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.database_names import is_valid_database_name
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT
from shardwright.wire.request import Request


def full_namespace(request: Request) -> Namespace:
    """Parse the full namespace that a command's own field names, as in ``{split: "db.collection"}``.

    Raises 40414, TypeMismatch or InvalidNamespace.
    """
    return Namespace.parse_collection(Arguments.of(request).namespace(request.name.encode()))


def named_in_full(request: Request) -> Namespace:
    """Parse a full namespace like `full_namespace`, for commands whose parser reports other errors.

    Raises BadValue if it is not a string, or InvalidNamespace.
    """
    text = request.collection
    namespace = Namespace.parse(text)
    if not namespace.collection or not is_valid_database_name(namespace.db):
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid namespace specified '{text}'")
    return namespace


def own_collection(request: Request) -> Namespace:
    """Parse the collection of the request's database that a command's own field names, as in ``{drop: "c"}``.

    Raises as `full_namespace`.
    """
    return Namespace.parse_collection(f"{request.db}.{Arguments.of(request).namespace(request.name.encode())}")


def chunk_version(arguments: Arguments, name: bytes) -> ChunkVersion:
    """Read a required chunk version; raise 40414 or TypeMismatch."""
    return ChunkVersion.from_span(arguments.document, arguments.span(name, OBJECT, ARRAY))


def secondary_throttle(arguments: Arguments) -> bool | None:
    """Whether a recipient's writes wait for its secondaries, under either name of the option; None if not given.

    Raises TypeMismatch, also for null.
    """
    for name in (b"secondaryThrottle", b"_secondaryThrottle"):
        if arguments.has(name):
            return arguments.boolean(name, strictness=Strictness.EXTRACTED)
    return None
