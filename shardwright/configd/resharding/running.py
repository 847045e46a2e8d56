"""Running resharding operations, for new requests and after a step-up."""

from shardwright.configd.resharding.coordinator import OperationOverError, ReshardingCoordinator
from shardwright.configd.resharding.store import Ending, ReshardingStore
from shardwright.configd.term.running_reshardings import ABORTED, ReshardingControl
from shardwright.configd.term.term import Term
from shardwright.daemon.backoff import Backoff
from shardwright.sharding.resharding.operation_document import ReshardingOperation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.resharding")


async def reshard(term: Term, wanted: ReshardingOperation) -> None:
    """Run an operation, or wait for the end of the same one; it continues even if this is cancelled.

    Raises:
        CommandError: 5808201, another one is in progress; or the reason for the abort, also if the request was repeated
            after the abort.
        OperationOverError: the same one was in progress, and has ended by now.
    """
    async with term.locks.hold("resharding"):
        store = ReshardingStore(term.catalog)
        active = await store.active()
        if active is None or not active.is_same_request(wanted):
            ending = await store.ending_of(wanted.id)
            if ending is Ending.ABORTED:
                raise CommandError(ErrorCode.ReshardCollectionAborted, ABORTED)
            if ending is Ending.MADE:
                return  # the collection may even have another key by now
            async with term.locks.hold(f"ns:{wanted.namespace}"):
                active = await store.begin(wanted)
                term.reshardings.statistics.started += 1
    await run_operation(term, active)


async def run_operation(term: Term, operation: ReshardingOperation) -> None:
    """Run a persisted operation to its end, or wait for the end of the present run.

    Raises:
        CommandError: the reason for the abort; InterruptedDueToReplStateChange, the term is over.
        OperationOverError: it has ended since it was read.
    """

    async def work(control: ReshardingControl) -> None:
        await ReshardingCoordinator(term, operation, control).run()

    await term.reshardings.run(operation.id, work)


async def resume_resharding(term: Term) -> None:
    """Resume the operation that a former primary left unfinished, if there is one."""
    backoff = Backoff(first_seconds=0.5, seconds_max=5.0)
    while True:
        try:
            operation = await ReshardingStore(term.catalog).active()
            break
        except (CommandError, BackendError) as error:
            logger.warning("Could not read the resharding operations", error=str(error))
        await backoff.pause()
    if operation is None:
        return
    logger.info("Resuming a resharding operation", namespace=str(operation.namespace), state=str(operation.state))
    try:
        await run_operation(term, operation)
    except (CommandError, OperationOverError) as error:
        logger.info("A resharding operation was not completed", resharding=str(operation.id), error=str(error))
