"""Arguments of commands that mean something to sharding: collections and versions."""

from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.database_names import is_valid_database_name
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT
from shardwright.wire.request import Request


def full_namespace(request: Request) -> Namespace:
    """The collection that a command names in full by its own field, as ``{split: "db.collection"}`` does.

    Raises:
        CommandError: 40414, TypeMismatch, InvalidNamespace.
    """
    return Namespace.parse_collection(Arguments.of(request).namespace(request.name.encode()))


def named_in_full(request: Request) -> Namespace:
    """As `full_namespace`, for commands whose parser checks the name with other errors.

    Raises:
        CommandError: BadValue, it is not a string; InvalidNamespace.
    """
    text = request.collection
    namespace = Namespace.parse(text)
    if not namespace.collection or not is_valid_database_name(namespace.db):
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid namespace specified '{text}'")
    return namespace


def own_collection(request: Request) -> Namespace:
    """The collection in the request's database that a command names by its own field, as ``{drop: "c"}`` does.

    Raises:
        CommandError: 40414, TypeMismatch, InvalidNamespace.
    """
    return Namespace.parse_collection(f"{request.db}.{Arguments.of(request).namespace(request.name.encode())}")


def chunk_version(arguments: Arguments, name: bytes) -> ChunkVersion:
    """A chunk version that has to be there.

    Raises:
        CommandError: 40414, TypeMismatch.
    """
    return ChunkVersion.from_span(arguments.document, arguments.span(name, OBJECT, ARRAY))


def secondary_throttle(arguments: Arguments) -> bool | None:
    """Whether a recipient's writes wait for its secondaries, under either name of the option; None if not given.

    Raises:
        CommandError: TypeMismatch, also for null.
    """
    for name in (b"secondaryThrottle", b"_secondaryThrottle"):
        if arguments.has(name):
            return arguments.boolean(name, strictness=Strictness.EXTRACTED)
    return None
