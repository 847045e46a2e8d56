"""Commands that carry documents to a mongod, and the memory that their documents may take in the router.

To join, a mongod gets documents ``{d: document, m: [matches], v: {values of variables}}`` and a ``$lookup`` on them
that takes the matches from ``m``, so paths, arrays and comparisons mean what they always mean.

Documents that exceed the memory are not an error: fewer documents are joined at once, in the end a single one
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
"""How much is handed to a mongod in one command, unless a single document needs more."""

BATCH_DOCUMENTS: Final = 1000
"""How many documents are joined by one command at most."""

COMMAND_BYTES_MAX: Final = BSON_OBJECT_INTERNAL_BYTES_MAX - 64 * 1024
"""How large the documents in a command may be together, if what it has besides is small."""

_ELEMENT_BYTES: Final = 9


def documents_stage(documents: Sequence[bytes]) -> bytes:
    """``{$documents: …}`` with raw documents, which are not read as expressions."""
    literal = from_elements(element(b"$literal", ARRAY, array_of_documents(list(documents))))
    return from_elements(element(b"$documents", OBJECT, literal))


def stage(name: str, specification: Any) -> bytes:  # noqa: ANN401 - each stage has its own
    """A stage, given its decoded specification."""
    return encode_document({name: specification})


def raw_stage(name: bytes, specification: bytes) -> bytes:
    """A stage, given its raw specification, a document."""
    return from_elements(element(name, OBJECT, specification))


def chunks(documents: Iterable[bytes], bytes_used: int = 0) -> Iterator[list[bytes]]:
    """Documents in lists that one command can hold; a single empty list if there are none.

    Args:
        documents: the documents; they are consumed as the lists are.
        bytes_used: the size of what the command holds besides.
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
    """A document and what it is handed over with.

    Attributes:
        document: the document.
        matches: the documents to join it with, or candidates.
        variables: a document with the values of variables that the stages for the matches use.
    """

    document: bytes
    matches: Sequence[bytes] = ()
    variables: bytes = EMPTY_DOCUMENT

    def encode(self) -> bytes:
        """The document that the mongod gets."""
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
    """Pipelines, of raw stages, whose results together are the joined documents.

    Args:
        handed: the documents.
        into: path of the field for the joined documents.
        tail: raw stages on single documents that follow.
        let: the variables that ``stages`` use, by name.
        fields: ``localField`` and ``foreignField`` if the matches still have to be compared.
        stages: raw stages for the matches.
        for_all: the matches of every document, if they are the same for all.
        is_exact: the matches that are handed over are the joined documents.
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
    """A name for a variable that no stage uses."""
    name = "matches"
    while any(name.encode() in each for each in stages):
        name += "_"
    return name


MEMORY_BYTES_MAX: Final = 100 * 1024 * 1024
"""What a single document may be joined with unless a ``$unwind`` follows, and what one search may find, as in a mongod
(``internalLookupStageIntermediateDocumentMaxSizeBytes`` and ``internalDocumentSourceGraphLookupMaxMemoryBytes``)."""

BATCH_MATCHES_BYTES_MAX: Final = 32 * 1024 * 1024
"""What is held for the documents of a batch together."""

_DOCUMENT_MATCHES_BYTES_MAX: Final = 8 * 1024 * 1024
"""What a document is handed over with, if both fit into one command."""


class TooLargeError(CommandError):
    """There is more than may be held."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            ErrorCode.QueryExceededMemoryLimitNoDiskUseAllowed,
            f"The documents that a stage needs exceed the memory limit of {bytes_max} bytes",
        )


class Room:
    """What is left of a limit, perhaps for several reads at once."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_left = bytes_max

    def take(self, documents: Iterable[bytes]) -> None:
        """Count documents that are held.

        Raises:
            TooLargeError: they are too large.
        """
        self.bytes_left -= sum(map(len, documents))
        if self.bytes_left < 0:
            raise TooLargeError(self._bytes_max)


def check_handed(handed: Iterable[Handed]) -> None:
    """Refuse to hand a document over with more than a command can have.

    Raises:
        TooLargeError: one has more.
    """
    for each in handed:
        size = sum(map(len, each.matches))
        if size > _DOCUMENT_MATCHES_BYTES_MAX or len(each.document) + size + len(each.variables) > COMMAND_BYTES_MAX:
            raise TooLargeError(_DOCUMENT_MATCHES_BYTES_MAX)
