"""Driving the reads of `sharding.catalog.reads` with a stock client."""

from typing import Any, TypeVar

from bson.codec_options import CodecOptions
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from shardwright.sharding.catalog.reads import CatalogRead, CatalogReads

Result = TypeVar("Result")

RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)


def run_reads(client: MongoClient[dict[str, Any]], steps: CatalogReads[Result]) -> Result:
    """The result of a read through ``client``."""
    try:
        read = next(steps)
        while True:
            sink = read.new_sink()
            sink.extend(read_raw(client, read))
            read = steps.send(sink)
    except StopIteration as finished:
        result: Result = finished.value
        return result


def read_raw(client: MongoClient[dict[str, Any]], read: CatalogRead) -> list[bytes]:
    """The raw documents of one cursor."""
    db = client[read.db]
    cursor: Any = db.command(read.command, codec_options=RAW)["cursor"]
    documents = list(cursor["firstBatch"])
    while cursor["id"]:
        more = {"getMore": Int64(cursor["id"]), "collection": cursor["ns"].partition(".")[2]}
        cursor = db.command(more, codec_options=RAW)["cursor"]
        documents += cursor["nextBatch"]
    return [document.raw for document in documents]
