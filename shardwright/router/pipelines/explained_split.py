"""The halves of a pipeline as ``explain`` shows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import decode_document


def explained_split(
    shards_part: Sequence[Stage], merger_part: Sequence[Stage], namespace: str, sort: Mapping[str, int] | None
) -> dict[str, Any]:
    """``splitPipeline``; the merger's part begins with the stage that reads the cursors of the shards."""
    merging = {
        **({} if sort is None else {"sort": dict(sort)}),
        "compareWholeSortKey": False,
        "tailableMode": "normal",
        "nss": namespace,
        "allowPartialResults": False,
        "recordRemoteOpWaitTime": False,
    }
    return {
        "shardsPart": [decode_document(stage.raw) for stage in shards_part],
        "mergerPart": [{"$mergeCursors": merging}, *(decode_document(stage.raw) for stage in merger_part)],
    }
