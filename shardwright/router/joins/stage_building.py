"""Stages and commands made of raw documents."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from shardwright.wire.limits import BSON_OBJECT_INTERNAL_BYTES_MAX
from shardwright.wire.rawbson import ARRAY, OBJECT, array_of_documents, element, encode_document, from_elements

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
