"""Building the blocks of a routing table from all chunks of a collection."""

from collections.abc import Iterable

from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunk_block import CHUNKS_PER_BLOCK, ChunkBlock, Row
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class BlockBuilder:
    """Packs the chunks of a collection into blocks as they arrive, and checks that they tile the key space.

    So building takes little more memory than the table, however many chunks there are.

    Args:
        pattern: the shard key of the collection.
    """

    def __init__(self, pattern: ShardKeyPattern) -> None:
        self._pattern = pattern
        self._blocks: list[ChunkBlock] = []
        self._rows: list[Row] = []
        self._last_key = b""
        self._end: bytes | None = None

    def add(self, chunks: Iterable[ChunkPlacement]) -> None:
        """Add chunks, in the order of their keys.

        Raises:
            CommandError: ConflictingOperationInProgress, there is a gap or an overlap.
        """
        encode, rows, size = encode_key, self._rows, CHUNKS_PER_BLOCK
        last_key, end = self._last_key, self._end
        for chunk in chunks:
            min_document, max_document, shard, version, history = chunk
            key = encode(min_document)
            # Bounds that touch are nearly always written with the same bytes, which saves encoding them.
            if min_document != end or key <= last_key:
                self._check_follows(chunk, last_key, end)
            valid_after, older = (history[0][0], history[1:]) if history else (0, ())  # `split_history`, without a call
            rows.append((key, min_document, shard, version, valid_after, older))
            if len(rows) == size:
                self._blocks.append(ChunkBlock(rows))
                rows.clear()
            last_key, end = key, max_document
        self._last_key, self._end = last_key, end

    def finish(self) -> list[ChunkBlock]:
        """The blocks, when all chunks have been added.

        Raises:
            CommandError: ConflictingOperationInProgress, there are no chunks, or they end before the key space does.
        """
        if self._rows:
            self._blocks.append(ChunkBlock(self._rows))
            self._rows = []
        if self._end is None:
            raise _inconsistent("there are no chunks")
        if self._pattern.key_bytes(self._end) != self._pattern.global_max_bytes():
            raise _inconsistent(f"nothing lies after {document_text(self._end)}")
        return self._blocks

    def _check_follows(self, chunk: ChunkPlacement, last_key: bytes, end: bytes | None) -> None:
        key = self._pattern.key_bytes(chunk.min)
        if end is None:
            if key != self._pattern.global_min_bytes():
                raise _inconsistent(f"nothing lies before {document_text(chunk.min)}")
            return
        end_key = self._pattern.key_bytes(end)
        if end_key != key:
            what = "gap" if end_key < key else "overlap"
            raise _inconsistent(f"{what} between {document_text(end)} and {document_text(chunk.min)}")
        if key <= last_key:
            raise _inconsistent(f"two chunks begin at {document_text(chunk.min)}")


def split_history(history: tuple[tuple[int, str], ...]) -> tuple[int, tuple[tuple[int, str], ...]]:
    """When the newest entry began, and all older entries; a chunk without history has always been where it is."""
    return (history[0][0], history[1:]) if history else (0, ())


def _inconsistent(what: str) -> CommandError:
    return CommandError(
        ErrorCode.ConflictingOperationInProgress, f"The chunks read from the catalog are not consistent: {what}"
    )
