"""Commands that carry documents to a mongod, and limits on the memory of their documents in the router.

To join, a mongod receives documents ``{d: document, m: [matches], v: {values of variables}}`` and a ``$lookup`` that
takes the matches from ``m``. Paths, arrays and comparisons therefore keep their meaning.

Documents that exceed the memory are not an error. Fewer documents are then joined at once, down to a single one
(`mongod_stages`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_INTERNAL_BYTES_MAX
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    array_of_documents,
    element,
    encode_document,
    encode_elements,
    from_elements,
)

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Size of the documents in one command to a mongod, unless a single document needs more."""

BATCH_DOCUMENTS: Final = 1000
"""Maximum number of documents that one command joins."""

COMMAND_BYTES_MAX: Final = BSON_OBJECT_INTERNAL_BYTES_MAX - 64 * 1024
"""Maximum total size of the documents in a command whose other parts are small."""

_ELEMENT_BYTES: Final = 9


def documents_stage(documents: Sequence[bytes]) -> bytes:
    """Return ``{$documents: …}`` with raw documents, which are not evaluated as expressions."""
    literal = from_elements(element(b"$literal", ARRAY, array_of_documents(list(documents))))
    return from_elements(element(b"$documents", OBJECT, literal))


def stage(name: str, specification: Any) -> bytes:  # noqa: ANN401 - each stage has its own
    """Encode a stage with a decoded specification."""
    return encode_document({name: specification})


def raw_stage(name: bytes, specification: bytes) -> bytes:
    """Encode a stage whose specification is a raw document."""
    return from_elements(element(name, OBJECT, specification))


def chunks(documents: Iterable[bytes], bytes_used: int = 0) -> Iterator[list[bytes]]:
    """Divide documents into lists that fit into one command each; yield a single empty list for no documents.

    Args:
        documents: the documents; they are consumed as the lists are.
        bytes_used: the size of the rest of the command.
    """
    room = min(BATCH_BYTES, COMMAND_BYTES_MAX - bytes_used)
    batch: list[bytes] = []
    size = 0
    for document in documents:
        if batch and (size + len(document) > room or len(batch) >= BATCH_DOCUMENTS):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += len(document) + _ELEMENT_BYTES
    yield batch


_UNWRAPPING: Final = stage("$replaceWith", "$d")


@dataclass(frozen=True, slots=True)
class Handed:
    """A document and the data to join it with.

    Attributes:
        matches: the documents to join it with, or candidates.
        variables: a document with the values of variables that the stages for the matches use.
    """

    document: bytes
    matches: Sequence[bytes] = ()
    variables: bytes = EMPTY_DOCUMENT

    def encode(self) -> bytes:
        """Encode the document for the mongod."""
        return from_elements(
            element(b"d", OBJECT, self.document)
            + element(b"m", ARRAY, array_of_documents(list(self.matches)))
            + element(b"v", OBJECT, self.variables)
        )


def joining_pipelines(
    handed: Iterable[Handed],
    into: str,
    tail: Sequence[bytes],
    *,
    let: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
    stages: Sequence[bytes] = (),
    for_all: Sequence[bytes] | None = None,
    is_exact: bool = False,
) -> Iterator[list[bytes]]:
    """Build pipelines of raw stages whose combined results are the joined documents.

    Args:
        into: path of the field for the joined documents.
        tail: raw stages on single documents that follow.
        let: the variables that ``stages`` use, by name.
        fields: ``localField`` and ``foreignField`` if the matches must still be compared.
        stages: raw stages for the matches.
        for_all: the matches of every document, if they are the same for all.
        is_exact: whether the matches are exactly the documents to join.
    """
    if is_exact and for_all is None and "." not in into:
        joining = stage("$set", {f"d.{into}": "$m"})  # many times faster than a $lookup
        encoded = (each.encode() for each in handed)
        return ([documents_stage(chunk), joining, _UNWRAPPING, *tail] for chunk in chunks(encoded))
    name = _unused_name(stages)
    if for_all is None:
        source = stage("$documents", f"$${name}")
        variables = {name: "$m", **(let or {})}
    else:
        source, variables = documents_stage(for_all), {}
    specification = {"as": f"d.{into}", "let": variables, **(fields or {})}
    pipeline = element(b"pipeline", ARRAY, array_of_documents([source, *stages]))
    joining = raw_stage(b"$lookup", from_elements(encode_elements(specification) + pipeline))
    encoded = (each.encode() for each in handed)
    return ([documents_stage(chunk), joining, _UNWRAPPING, *tail] for chunk in chunks(encoded, len(joining)))


def _unused_name(stages: Sequence[bytes]) -> str:
    """Return a variable name that no stage uses."""
    name = "matches"
    while any(name.encode() in each for each in stages):
        name += "_"
    return name


MEMORY_BYTES_MAX: Final = 100 * 1024 * 1024
"""Maximum size of the documents to join with one document unless a ``$unwind`` follows, and of one search's results.

Both are a mongod's limits: ``internalLookupStageIntermediateDocumentMaxSizeBytes`` and
``internalDocumentSourceGraphLookupMaxMemoryBytes``.
"""

BATCH_MATCHES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum size of the matches that are held for a batch."""

_DOCUMENT_MATCHES_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of a document's matches, if both fit into one command."""


class TooLargeError(CommandError):
    """The documents exceed the memory limit."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            ErrorCode.QueryExceededMemoryLimitNoDiskUseAllowed,
            f"The documents that a stage needs exceed the memory limit of {bytes_max} bytes",
        )


class Room:
    """The rest of a memory limit, which several reads may share."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_left = bytes_max

    def take(self, documents: Iterable[bytes]) -> None:
        """Count documents that are held.

        Raises:
            TooLargeError: the limit is exceeded.
        """
        self.bytes_left -= sum(map(len, documents))
        if self.bytes_left < 0:
            raise TooLargeError(self._bytes_max)


def check_handed(handed: Iterable[Handed]) -> None:
    """Check that each document fits into a command together with its matches.

    Raises:
        TooLargeError: one does not.
    """
    for each in handed:
        size = sum(map(len, each.matches))
        if size > _DOCUMENT_MATCHES_BYTES_MAX or len(each.document) + size + len(each.variables) > COMMAND_BYTES_MAX:
            raise TooLargeError(_DOCUMENT_MATCHES_BYTES_MAX)
