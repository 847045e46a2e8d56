"""Errors of change streams: the label by which drivers know that they may resume, and mongos's own errors."""

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
    """Label errors in the block after which a driver may resume the change stream, as mongos does.

    Raises:
        CommandError: the one raised in the block.
    """
    try:
        yield
    except CommandError as error:
        if RESUMABLE not in error.labels and _is_resumable(error.code):
            error.labels = (*error.labels, RESUMABLE)
        raise


def _is_resumable(code: int) -> bool:
    return code in _RESUMABLE_CODES or any(has_category(code, category) for category in _RESUMABLE_CATEGORIES)


def token_not_found(token: ResumeToken) -> CommandError:
    """The error when the event after which to resume is in no shard's stream."""
    return CommandError(
        ErrorCode.ChangeStreamFatalError,
        f'cannot resume stream; the resume token was not found. {{_data: "{token.data}"}}',
        labels=(NON_RESUMABLE,),
    )


def several_documents(key: bytes, documents: Iterable[bytes]) -> CommandError:
    """The error when the look-up of an event's document finds several, and the event does not tell which is meant.

    Args:
        key: the raw ``documentKey``.
        documents: the documents that were found.
    """
    found = ", ".join(document_text(document) for document in documents)
    return CommandError(
        ErrorCode.ChangeStreamFatalError,
        f"found more than one document matching {document_text(key)} [{found}]",
        labels=(NON_RESUMABLE,),
    )


def id_modified(expected: ResumeToken, found: bytes) -> CommandError:
    """The error when the client's stages have changed or removed an event's ``_id``.

    Args:
        expected: what it was.
        found: the raw element that it has become; empty if it is gone.
    """
    return CommandError(
        ErrorCode.ChangeStreamFatalError,
        "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. "
        "Modifying the _id field of an event makes it impossible to resume the stream from that point. Only "
        "transformations that retain the unmodified _id field are allowed. Expected: "
        f'{{ _id: {{ _data: "{expected.data}" }} }} but found: {document_text(from_elements(found))}',
        labels=(NON_RESUMABLE,),
    )
