"""The server parameters of auto-splitting, set at start and by ``setParameter``; mongod does not know them."""

from dataclasses import dataclass
from typing import Final

GROWTH_FRACTION: Final = 0.2
"""MongoDB's: it looks for split points whenever a fifth of the chunk size has been written to a chunk."""


@dataclass
class SplitParameters:
    """The parameters of one shard daemon.

    Attributes:
        is_enabled: whether chunks are split as they grow (``autoSplitChunks``); if not, as in MongoDB since 6.0.3, the
            balancer splits off what it moves and nothing else.
        growth_fraction: after which fraction of the chunk size has been written to a chunk split points are looked for
            (``autoSplitGrowthFraction``).
    """

    is_enabled: bool = True
    growth_fraction: float = GROWTH_FRACTION
