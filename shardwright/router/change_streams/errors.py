"""Errors of change streams: the label that makes drivers resume, and mongos's own errors."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import from_elements

RESUMABLE: Final = "ResumableChangeStreamError"
NON_RESUMABLE: Final = "NonResumableChangeStreamError"

_RESUMABLE_CATEGORIES: Final = (Category.RETRYABLE, Category.NETWORK, Category.STALE_ROUTING)
_RESUMABLE_CODES: Final = frozenset(
    {
        ErrorCode.RetryChangeStream,
        ErrorCode.FailedToSatisfyReadPreference,
        ErrorCode.QueryPlanKilled,
        ErrorCode.OBSOLETE_StaleShardVersion,
    }
)


@contextmanager
def labelled() -> Iterator[None]:
    """Label errors in the block after which a driver may resume the change stream, as mongos does."""
    try:
        yield
    except CommandError as error:
        if RESUMABLE not in error.labels and _is_resumable(error.code):
            error.labels = (*error.labels, RESUMABLE)
        raise


def _is_resumable(code: int) -> bool:
    return code in _RESUMABLE_CODES or any(has_category(code, category) for category in _RESUMABLE_CATEGORIES)


def token_not_found(token: ResumeToken) -> CommandError:
    """Return the error for a resume token whose event is in no shard's stream."""
    return CommandError(
        ErrorCode.ChangeStreamFatalError,
        f'cannot resume stream; the resume token was not found. {{_data: "{token.data}"}}',
        labels=(NON_RESUMABLE,),
    )


def several_documents(key: bytes, documents: Iterable[bytes]) -> CommandError:
    """Return the error for an update look-up that finds several documents where the event does not identify one.

    Args:
        key: the raw ``documentKey``.
    """
    found = ", ".join(document_text(document) for document in documents)
    return CommandError(
        ErrorCode.ChangeStreamFatalError,
        f"found more than one document matching {document_text(key)} [{found}]",
        labels=(NON_RESUMABLE,),
    )


def id_modified(expected: ResumeToken, found: bytes) -> CommandError:
    """Return the error for a pipeline that has changed or removed an event's ``_id``.

    Args:
        found: the raw changed element; empty if it is gone.
    """
    return CommandError(
        ErrorCode.ChangeStreamFatalError,
        "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. "
        "Modifying the _id field of an event makes it impossible to resume the stream from that point. Only "
        "transformations that retain the unmodified _id field are allowed. Expected: "
        f'{{ _id: {{ _data: "{expected.data}" }} }} but found: {document_text(from_elements(found))}',
        labels=(NON_RESUMABLE,),
    )
