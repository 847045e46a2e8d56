"""The end of a daemon whose mongod is primary and goes on running: another member takes over.

A mongod that shuts down steps down first. The mongod of a daemon that shuts down would stay primary, out of the reach
of all clients, because the set knows nothing of daemons.
"""

from typing import Final

from shardwright.daemon.sidecar.hello_mirror import HelloMirror
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("daemon.sidecar")

CATCH_UP_SECONDS_MAX: Final = 30

ELECTION_SECONDS: Final = 10
"""How long the mongod does not stand for election after others have caught up.

Enough for one of them to be elected, and not so long that nobody is left when the daemons of a set are restarted one
after the other.
"""


async def hand_over(mirror: HelloMirror, mongod: LocalMongod, seconds: float) -> None:
    """Have the mongod step down if it is primary and has somebody to whom to leave that.

    Args:
        mirror: has the newest hello.
        mongod: the mongod.
        seconds: how long to wait for another member to catch up; if none does, the mongod stays primary.
    """
    if mirror.term is None or mirror.hello is None or len(mirror.hello.get("hosts", ())) < 2:
        return
    catch_up = min(max(1, int(seconds)), CATCH_UP_SECONDS_MAX)
    command = {"replSetStepDown": catch_up + ELECTION_SECONDS, "secondaryCatchUpPeriodSecs": catch_up}
    try:
        await mongod.command("admin", command)
    except (CommandError, BackendError) as error:
        logger.warning("The mongod stays primary, although its daemon ends", error=str(error))
    else:
        logger.info("The mongod has stepped down, because its daemon ends", term=mirror.term)
