"""Which operations are logged as slow; the ``profile`` command changes it."""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class SlowOperations:
    """The rule for logging slow operations.

    Attributes:
        slow_ms: operations that take longer are logged.
        sample_rate: the part of them that is, from 0 to 1.
    """

    slow_ms: float
    sample_rate: float = 1.0

    def is_sampled(self) -> bool:
        """Whether a slow operation is logged."""
        return self.sample_rate >= 1 or random.random() < self.sample_rate
