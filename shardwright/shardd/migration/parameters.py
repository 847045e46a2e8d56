"""The server parameters of migrations, set at start and by ``setParameter``; mongod does not know them."""

from dataclasses import dataclass
from typing import Final

CATCH_UP_SECONDS_MAX: Final = 6 * 3600.0
"""MongoDB's limit for clone and catch-up."""


@dataclass
class MigrationParameters:
    """The parameters of one shard daemon.

    Attributes:
        verify: whether donor and recipient compare the range's documents before every commit (``verifyMigrations``).
        catch_up_seconds_max: how long a migration may take to reach its critical section before it is given up
            (``migrationCatchUpTimeoutSecs``).
    """

    verify: bool = False
    catch_up_seconds_max: float = CATCH_UP_SECONDS_MAX
