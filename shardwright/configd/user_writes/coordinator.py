"""The coordinator that blocks or allows the writes of users in the whole cluster.

Its document (``config.sharding_configsvr_coordinators``) is written before the first phase and removed after the last,
so the next primary continues in the same phase. Each phase runs on all shards first, then on the config servers. There
is one coordinator at a time, and a request for the same mode joins it.
"""

from functools import partial
from typing import Any, Final
from uuid import uuid4

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.configd.term.term import ADDING_SHARDS, END, Term
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.logger import get_logger

logger = get_logger("configd.user_writes")

COORDINATORS: Final = "sharding_configsvr_coordinators"
_TYPE: Final = "setUserWriteBlockMode"
_ID: Final = {"coordinatorType": _TYPE}
_LOCK: Final = "user writes"
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}


async def set_user_write_block_mode(term: Term, *, block: bool) -> None:
    """Block the writes of users, or allow them again; continues even if this is cancelled.

    Raises:
        CommandError: ConflictingOperationInProgress, the other mode is being set; InterruptedDueToReplStateChange.
    """
    async with term.locks.hold(_LOCK):
        document = await _find(term)
        if document is None:
            session = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(0)}
            document = {"_id": _ID, "block": block, "phase": str(Phase.PREPARE), "session": session}
            await _save(term, document)
        elif document["block"] != block:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress,
                "Another ConfigsvrCoordinator with different arguments is already running with ID: "
                '{ coordinatorType: "setUserWriteBlockMode" }',
            )
    await _run(term, document)


async def resume_user_write_block(term: Term) -> None:
    """Resume the coordinator that a former primary left unfinished, if there is one."""
    find = partial(_find, term)
    document = await until_done(find, Backoff(first_seconds=0.5, seconds_max=5.0), _log_failure)
    if document is not None:
        logger.info("Resuming to set the user write block mode", block=document["block"], phase=document["phase"])
        await _run(term, document)


async def _run(term: Term, document: dict[str, Any]) -> None:
    """Run the coordinator of a document to its end, or wait for the end of the present run."""
    await term.user_write_blocks.run(bytes(document["session"]["lsid"]["id"]), partial(_work, term, document))


async def _work(term: Term, document: dict[str, Any]) -> None:
    if await _is_over(term, document):
        return  # another run ended between the reading of the document and the beginning of this one
    for phase in list(Phase)[list(Phase).index(Phase(document["phase"])) :]:
        step = partial(_enter, term, document, phase)
        await until_done(step, Backoff(first_seconds=0.2, seconds_max=5.0), _log_failure)
    await term.hang_at(_TYPE, END)
    remove = partial(term.catalog.delete, COORDINATORS, {"_id": _ID})
    await until_done(remove, Backoff(first_seconds=0.2, seconds_max=5.0), _log_failure)
    logger.info("Set the user write block mode", block=document["block"])


async def _is_over(term: Term, document: dict[str, Any]) -> bool:
    find = partial(_find, term)
    present = await until_done(find, Backoff(first_seconds=0.2, seconds_max=5.0), _log_failure)
    return present is None or present["session"]["lsid"] != document["session"]["lsid"]


async def _enter(term: Term, document: dict[str, Any], phase: Phase) -> None:
    """Run a phase on all servers; no shard can be added during it."""
    session = document["session"]
    document |= {"phase": str(phase), "session": {**session, "txnNumber": Int64(session["txnNumber"] + 1)}}
    block: bool = document["block"]
    async with term.locks.hold(ADDING_SHARDS):
        await _save(term, document)
        await term.hang_at(_TYPE, phase)
        await _send_to_shards(term, document, phase)
        await UserWriteBlock(term.catalog.mongod).enter(phase, block=block)


async def _send_to_shards(term: Term, document: dict[str, Any], phase: Phase) -> None:
    """Run a phase on all shards concurrently.

    Raises:
        CommandError: the error of one of them; the command has been sent to all.
    """
    command = {
        "_shardsvrSetUserWriteBlockMode": 1,
        "global": document["block"],
        "phase": str(phase),
        **document["session"],
        "writeConcern": _MAJORITY,
    }
    errors: list[CommandError] = []

    async def send(shard_id: str) -> None:
        try:
            await term.shards.command(await term.catalog.shard(shard_id), "admin", command)
        except CommandError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for shard in await term.catalog.shards():
            nursery.start_soon(send, shard.id)
    for error in errors:
        raise error


async def _find(term: Term) -> dict[str, Any] | None:
    return await term.catalog.find_by_id(COORDINATORS, _ID)


async def _save(term: Term, document: dict[str, Any]) -> None:
    update = {"q": {"_id": _ID}, "u": document, "upsert": True}
    reply = await term.catalog.mongod.command(
        "config", {"update": COORDINATORS, "updates": [update], "writeConcern": {"w": "majority"}}
    )
    check_writes(reply)


def _log_failure(error: BackendError | CommandError, retry_seconds: float) -> None:
    logger.warning(
        "Could not set the user write block mode yet", error=str(error), retry_seconds=round(retry_seconds, 3)
    )
