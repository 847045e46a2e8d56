"""The values from which the next step of a ``$graphLookup`` starts."""

from collections.abc import Sequence

from shardwright.wire.rawbson import ARRAY, BOOL, OBJECT, UNDEFINED, Span, element, find, from_elements, spans


class Frontier:
    """Different values, as type and raw bytes: of arrays their elements, of missing fields nothing, as in MongoDB."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, bytes], None] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def add_start(self, document: bytes, span: Span | None) -> None:
        """Add the value that the search starts with, or its elements.

        Args:
            document: where the value is.
            span: the value, None if there is none.
        """
        if span is not None:
            self._add(document, span)

    def add(self, document: bytes, path: Sequence[bytes], start: int = 0) -> None:
        """Add the values at a path of a document.

        Args:
            document: the document.
            path: the names, at least one.
            start: where in ``document`` the object or array begins that the path starts at.
        """
        span = find(document, path[0], start)
        if span is None:
            return
        if len(path) == 1:
            self._add(document, span)
        elif span[0] == OBJECT:
            self.add(document, path[1:], span[2])
        elif span[0] == ARRAY:
            if path[1].isdigit():
                self.add(document, path[1:], span[2])
            for _, each in spans(document, span[2]):
                if each[0] == OBJECT:
                    self.add(document, path[1:], each[2])

    def filter(self, field: bytes) -> bytes:
        """A raw filter for documents with one of the values in a field; a missing field is not null here."""
        parts = [element(b"%d" % position, *value) for position, value in enumerate(self._values)]
        values = from_elements(b"".join(parts))
        exists = element(b"$exists", BOOL, b"\1")
        return from_elements(element(field, OBJECT, from_elements(element(b"$in", ARRAY, values) + exists)))

    def _add(self, document: bytes, span: Span) -> None:
        found = [each for _, each in spans(document, span[2])] if span[0] == ARRAY else [span]
        for kind, _, start, end in found:
            if kind != UNDEFINED:
                self._values[kind, document[start:end]] = None
