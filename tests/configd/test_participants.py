"""Asking several participants of a resharding at the same time."""

import pytest
import trio

from shardwright.configd.resharding.transitions import together
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError


@pytest.mark.parametrize(
    "failure",
    [CommandError(ErrorCode.BadValue, "refused"), BackendError("mongod", "could not connect", sent=False)],
    ids=lambda failure: type(failure).__name__,
)
def test_the_error_of_one_ends_the_others(failure: CommandError | BackendError) -> None:
    """It is raised as it is, so that the coordinator, which expects either, repeats the step or aborts."""

    async def work(shard: str) -> None:
        if shard == "b":
            raise failure
        await trio.sleep_forever()

    async def check() -> None:
        with trio.fail_after(10):
            await together(["a", "b"], work)

    with pytest.raises(type(failure)) as caught:
        trio.run(check)
    assert caught.value is failure
