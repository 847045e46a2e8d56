"""The server parameters of key statistics."""

from dataclasses import dataclass

from shardwright.sharding.key_statistics import MINUTE_SECONDS


@dataclass
class KeyStatisticsParameters:
    """The key statistics parameters of one shard daemon.

    Attributes:
        is_enabled: whether operations are counted (``keyStatistics``).
        interval_seconds: interval between writes of the counts (``keyStatisticsIntervalSecs``).
    """

    is_enabled: bool = True
    interval_seconds: float = MINUTE_SECONDS
