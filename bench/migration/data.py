"""The documents that are moved, and the documents in the same collection that stay."""

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.errors import PyMongoError

from bench.loadgen import BenchError
from bench.workloads import DATABASE
from shardwright.deploy.mongod import connect

T = TypeVar("T")

DOCUMENT_BYTES: Final = 1_000
KEPT_DOCUMENTS: Final = 10_000
"""Number of documents that stay, with keys above the moved ones."""

_BATCH: Final = 5_000
_COMMAND_SECONDS: Final = 600.0
_SEED: Final = 1
_TEXT_CHARACTERS: Final = 1 << 20


def insert_documents(address: str, collection: str, moved: int) -> None:
    """Insert documents with keys from 0 through a mongod: ``moved`` of them, and `KEPT_DOCUMENTS` with higher keys."""
    with connect(address, _COMMAND_SECONDS) as client:
        try:
            for batch in batches(_documents(moved + KEPT_DOCUMENTS), _BATCH):
                client[DATABASE][collection].insert_many(batch, ordered=False)
        except PyMongoError as error:
            raise BenchError(f"the data could not be inserted: {error}") from error


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most ``size``."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _documents(count: int) -> Iterator[RawBSONDocument]:
    """Yield documents of `DOCUMENT_BYTES` each, with text that compresses only moderately."""
    numbers = random.Random(_SEED)
    text = numbers.randbytes(_TEXT_CHARACTERS // 2).hex()
    filled = DOCUMENT_BYTES - len(bson.encode(_document(0, "")))
    for key in range(count):
        start = numbers.randrange(len(text) - filled)
        yield RawBSONDocument(bson.encode(_document(key, text[start : start + filled])))


def _document(key: int, text: str) -> dict[str, Any]:
    return {"_id": bson.ObjectId(), "key": key, "counter": 0, "text": text}
