"""What can be set about migrations, at start and by ``setParameter``. No mongod knows these parameters."""

from dataclasses import dataclass
from typing import Final

CATCH_UP_SECONDS_MAX: Final = 6 * 3600.0
"""How long MongoDB lets a clone and its catching up take."""


@dataclass
class MigrationParameters:
    """The parameters of one shard daemon.

    Attributes:
        verify: donor and recipient compare what they have of the range before every commit (``verifyMigrations``).
        catch_up_seconds_max: after which a migration that has not entered its critical section is given up
            (``migrationCatchUpTimeoutSecs``).
    """

    verify: bool = False
    catch_up_seconds_max: float = CATCH_UP_SECONDS_MAX
