"""Pipelines that join documents with others that are handed to the mongod along with them.

The mongod gets documents ``{d: document, m: [matches], v: {values of variables}}`` and a ``$lookup`` on them that takes
the matches from ``m``, so paths, arrays and comparisons mean what they always mean.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shardwright.router.joins.stage_building import chunks, documents_stage, raw_stage, stage
from shardwright.wire.rawbson import (
    ARRAY,
    EMPTY_DOCUMENT,
    OBJECT,
    array_of_documents,
    element,
    encode_elements,
    from_elements,
)

_UNWRAPPING: Final = stage("$replaceWith", "$d")


@dataclass(frozen=True, slots=True)
class Handed:
    """A document and what it is handed over with.

    Attributes:
        document: the document.
        matches: the documents to join it with, or those of which some match.
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
