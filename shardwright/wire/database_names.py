"""Valid names of databases and collections, with the rules and messages of mongod 6.0.5."""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

DATABASE_NAME_BYTES_MAX: Final = 63
"""Longest database name, in UTF-8."""

_INVALID_IN_DATABASE_NAME: Final = frozenset('/\\ "')


def is_valid_database_name(db: str) -> bool:
    """Whether mongod would create a database of this name."""
    if not db or "." in db or "\0" in db or not _INVALID_IN_DATABASE_NAME.isdisjoint(db):
        return False
    return len(db) <= DATABASE_NAME_BYTES_MAX and (db.isascii() or len(db.encode()) <= DATABASE_NAME_BYTES_MAX)


def check_database_name(db: str) -> None:
    """Raise InvalidNamespace for an invalid ``$db``."""
    if is_valid_database_name(db):
        return
    if "." in db:
        raise _invalid(f"'.' is an invalid character in the database name: {db}")
    if "\0" in db:
        raise _invalid("namespaces cannot have embedded null characters")
    raise _invalid(f"Invalid database name: '{db}'")


def name_text(raw: bytes) -> str:
    """Decode the name of a database or collection; raise InvalidNamespace if it is not UTF-8.

    MongoDB allows any bytes but NUL. A lossy decoding would name another database or collection.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _invalid(f"Invalid namespace specified '{raw.decode(errors='backslashreplace')}': not UTF-8") from None


def _invalid(message: str) -> CommandError:
    return CommandError(ErrorCode.InvalidNamespace, message)
