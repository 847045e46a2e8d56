"""The pipeline of a command, replaced. Pure."""

from collections.abc import Sequence
from typing import Final

from shardwright.wire.rawbson import ARRAY, append, array_of_documents, element, without

_PIPELINE: Final = b"pipeline"


def with_stages(body: bytes, stages: Sequence[bytes]) -> bytes:
    """The command with another pipeline.

    Args:
        body: of a command that has a pipeline.
        stages: raw.
    """
    return append(without(body, (_PIPELINE,)), element(_PIPELINE, ARRAY, array_of_documents(stages)))
