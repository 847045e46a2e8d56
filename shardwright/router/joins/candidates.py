"""The documents of the other collection that may match each document of a batch."""

from collections.abc import Sequence, Set

from shardwright.router.joins.field_values import comparison_key, values_at


class Candidates:
    """Documents of the other collection by the values of the field that is compared.

    It saves a mongod from comparing every document with every other. What it returns may hold too much, which the
    mongod leaves out: it makes the exact comparison.
    """

    def __init__(self, documents: Sequence[bytes], path: Sequence[bytes], *, is_collated: bool) -> None:
        """Index the documents.

        Args:
            documents: of the other collection.
            path: the names of the path of the compared field.
            is_collated: a collation applies that is not the simple one.
        """
        self._documents = documents
        self._is_collated = is_collated
        self._by_key: dict[bytes, list[int]] = {}
        for number, document in enumerate(documents):
            for key in self._keys(document, path):
                self._by_key.setdefault(key, []).append(number)

    def of(self, document: bytes, path: Sequence[bytes]) -> list[bytes]:
        """Those that may match a document of the batch, in their own order.

        Args:
            document: the document.
            path: the names of the path of its compared field.
        """
        return self.of_keys(self._keys(document, path))

    def of_keys(self, keys: Set[bytes]) -> list[bytes]:
        """As `of`, given the keys of the document's values, which depend on the collation."""
        if len(keys) == 1:
            [key] = keys
            return [self._documents[number] for number in self._by_key.get(key, ())]
        numbers: set[int] = set()
        for key in keys:
            numbers.update(self._by_key.get(key, ()))
        return [self._documents[number] for number in sorted(numbers)]

    def _keys(self, document: bytes, path: Sequence[bytes]) -> set[bytes]:
        return {comparison_key(document, span, is_collated=self._is_collated) for span in values_at(document, path)}
