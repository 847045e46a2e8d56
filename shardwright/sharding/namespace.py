"""Names of collections: their parts, their validity, the names reserved for MongoDB, and arguments of commands.

The rules and the messages are mongod 6.0.5's. Lengths count UTF-8 bytes, as the server's do.
"""

from dataclasses import dataclass
from typing import Final

from shardwright.sharding.time_series import BUCKETS_PREFIX
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, OBJECT
from shardwright.wire.request import Request, is_valid_database_name

NAMESPACE_BYTES_MAX: Final = 255
SHARDED_NAMESPACE_BYTES_MAX: Final = 235
"""Limit for sharded collections: shards keep the chunks in a collection with the prefix ``config.cache.chunks.``.

Checked where a collection is created, not where it is read, as in MongoDB.
"""

_COMMAND: Final = "$cmd"

# Reserved "system." names that may exist, in every database and in particular ones.
_SYSTEM_COLLECTIONS: Final = frozenset({"system.js", "system.users", "system.profile", "system.views"})
_SYSTEM_COLLECTIONS_OF: Final = {
    "admin": frozenset({"system.roles", "system.version", "system.keys", "system.backup_users", "system.new_users"}),
    "config": frozenset(
        {
            "system.sessions",
            "system.indexBuilds",
            "system.preimages",
            "system.sharding_ddl_coordinators",
        }
    ),
    "local": frozenset({"system.replset", "system.healthlog"}),
}

# Maintained by the server itself: they may exist, but clients cannot write them.
_READ_ONLY_SYSTEM_COLLECTIONS: Final = frozenset({"system.profile", "system.views"})


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """A database name and a collection name, ``db.collection``. The ``check_`` methods raise InvalidNamespace.

    ``collection`` is empty for a namespace that means a whole database.
    """

    db: str
    collection: str = ""

    @classmethod
    def parse(cls, text: str) -> "Namespace":
        """Split ``text`` at its first dot, without validating the parts; `check_valid` does that."""
        db, _, collection = text.partition(".")
        return cls(db, collection)

    @classmethod
    def parse_collection(cls, text: str) -> "Namespace":
        """Parse the full namespace of a collection, as in ``shardCollection``; raise InvalidNamespace."""
        namespace = cls.parse(text)
        namespace.check_valid()
        return namespace

    def __str__(self) -> str:
        return f"{self.db}.{self.collection}" if self.collection else self.db

    # Validity

    def check_valid(self) -> None:
        """Refuse a name that no command accepts."""
        refuse_null_characters(f"{self.db}.{self.collection}")
        if "." in self.db:
            raise _invalid(f"'.' is an invalid character in the database name: {self.db}")
        if self.collection.startswith("."):
            raise _invalid(f"Collection names cannot start with '.': {self.collection}")
        if not self.collection or not is_valid_database_name(self.db):
            raise _invalid(f"Invalid namespace specified '{self.db}.{self.collection}'")

    def check_readable(self) -> None:
        """Refuse names that ``find`` and the other reads refuse: names with a dollar sign."""
        self.check_valid()
        if not self.is_normal:
            # The quote that is never closed is MongoDB's.
            raise _invalid(f"Invalid collection name specified '{self}")

    def check_creatable(self) -> None:
        """Refuse a name that a new collection cannot have."""
        self.check_valid()
        if "$" in self.db:
            raise _invalid(f"Invalid namespace: {self}")
        if "$" in self.collection:
            raise _invalid(f"Invalid collection name: {self.collection}")
        if self.is_system and not self._is_legal_system_collection:
            raise _invalid(f"Invalid system namespace: {self}")
        if len(str(self).encode()) > NAMESPACE_BYTES_MAX:
            raise _invalid(f"Fully qualified namespace is too long. Namespace: {self} Max: {NAMESPACE_BYTES_MAX}")

    def check_shardable(self) -> None:
        """Refuse a name that a sharded collection cannot have."""
        self.check_creatable()
        if len(str(self).encode()) > SHARDED_NAMESPACE_BYTES_MAX:
            raise _invalid(f"Namespace too long. Namespace: {self} Max: {SHARDED_NAMESPACE_BYTES_MAX}")

    def check_writable(self) -> None:
        """Refuse names that ``insert``, ``update`` and ``delete`` refuse."""
        self.check_creatable()
        if self.collection in _READ_ONLY_SYSTEM_COLLECTIONS:
            raise _invalid(f"cannot write to {self}")

    @property
    def is_normal(self) -> bool:
        """Whether no dollar sign makes this a pseudo-collection such as ``$cmd``."""
        return "$" not in self.db and "$" not in self.collection

    # Kinds of databases and collections

    @property
    def is_admin(self) -> bool:
        """Whether the database is the one for users and server-wide commands, whose placement is fixed."""
        return self.db == "admin"

    @property
    def is_local(self) -> bool:
        """Whether the database is the one that is not replicated."""
        return self.db == "local"

    @property
    def is_internal(self) -> bool:
        """Whether the database belongs to the cluster and never carries a database version."""
        return self.db in ("config", "admin", "local")

    @property
    def is_system(self) -> bool:
        """Whether the collection is one of the reserved ``system.`` names."""
        return self.collection.startswith("system.")

    @property
    def is_time_series_buckets(self) -> bool:
        """Whether the collection holds the buckets of a time-series collection."""
        return self.collection.startswith(BUCKETS_PREFIX)

    @property
    def buckets(self) -> "Namespace":
        """Namespace of the buckets of this time-series collection."""
        return Namespace(self.db, BUCKETS_PREFIX + self.collection)

    @property
    def measurements(self) -> "Namespace":
        """The time-series collection whose buckets this collection holds."""
        return Namespace(self.db, self.collection.removeprefix(BUCKETS_PREFIX))

    @property
    def is_logical_sessions(self) -> bool:
        """Whether this is ``config.system.sessions``, the one sharded collection of the config database."""
        return self.db == "config" and self.collection == "system.sessions"

    # Pseudo-collections

    @classmethod
    def collectionless_aggregate(cls, db: str) -> "Namespace":
        """Return the namespace of ``{aggregate: 1}`` in cursors: ``db.$cmd.aggregate``."""
        return cls(db, "$cmd.aggregate")

    @classmethod
    def list_collections(cls, db: str) -> "Namespace":
        """Return the namespace of the cursor of ``listCollections``."""
        return cls(db, "$cmd.listCollections")

    @property
    def is_command(self) -> bool:
        """Whether this is ``$cmd``, the target of commands in old protocols."""
        return self.collection == _COMMAND

    def with_collection(self, collection: str) -> "Namespace":
        """Return a collection of the same database."""
        return Namespace(self.db, collection)

    @property
    def _is_legal_system_collection(self) -> bool:
        if self.is_time_series_buckets:
            return len(self.collection) > len(BUCKETS_PREFIX)
        return self.collection in _SYSTEM_COLLECTIONS or self.collection in _SYSTEM_COLLECTIONS_OF.get(self.db, ())


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidNamespace, message)


def full_namespace(request: Request) -> Namespace:
    """Parse the full namespace that a command's own field names, as in ``{split: "db.collection"}``.

    Raises 40414, TypeMismatch or InvalidNamespace.
    """
    return Namespace.parse_collection(Arguments.of(request).namespace(request.name.encode()))


def refuse_null_characters(text: str) -> None:
    """Refuse a full namespace with a null character; raise InvalidNamespace."""
    if "\0" in text:
        raise _invalid("namespaces cannot have embedded null characters")


def named_in_full(request: Request) -> Namespace:
    """Parse a full namespace like `full_namespace`, for commands whose parser reports other errors.

    Raises BadValue if it is not a string, or InvalidNamespace.
    """
    text = request.collection
    refuse_null_characters(text)
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
