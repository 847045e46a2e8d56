"""Loading the data before the measurements, in the same way for every target."""

import random
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from bench.loadgen import BenchError
from bench.workloads import DATABASE, INDEXES, READ_COLLECTION, WRITE_COLLECTION, Dialect, stored_documents

_BATCH: Final = 10_000
_SEED: Final = 1


def create_indexes(client: MongoClient[dict[str, Any]]) -> None:
    """Create the indexes of both collections through a server that supports ``createIndexes``."""
    for collection in (READ_COLLECTION, WRITE_COLLECTION):
        for field in INDEXES:
            client[DATABASE][collection].create_index(field)


def insert_documents(client: MongoClient[dict[str, Any]], dialect: Dialect) -> None:
    """Insert the documents that most read workloads find."""
    insert_into(client, dialect, READ_COLLECTION, stored_documents(random.Random(_SEED)))


def insert_into(
    client: MongoClient[dict[str, Any]], dialect: Dialect, collection: str, documents: Iterable[dict[str, Any]]
) -> None:
    """Insert documents into a collection."""
    remaining = iter(documents)
    while batch := list(islice(remaining, _BATCH)):
        try:
            reply = client[DATABASE].command(
                dialect("insert"), collection, documents=batch, ordered=False, writeConcern={"w": "majority"}
            )
        except PyMongoError as error:
            raise BenchError(f"the data could not be inserted: {error}") from error
        if reply["n"] != len(batch):
            raise BenchError(f"the data could not be inserted: {reply.get('writeErrors', reply)}")
