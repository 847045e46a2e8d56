"""``_configsvrBalancerStart``, ``…Stop``, ``…Status``: the balancer's switch, and how its rounds are going.

The switch is the document ``balancer`` of ``config.settings``. MongoDB 6.0 flips ``autosplit`` along with it.
"""

from typing import Any

from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.catalog.settings import AUTO_SPLIT_ID, BALANCER_ID, BalancerSettings
from shardwright.wire.errors import CommandError


@config_command("_configsvrBalancerStart", write_concern=WriteConcernRule.UNSUPPORTED)
async def balancer_start(operation: Operation) -> dict[str, Any]:
    """Turn the balancer on; a round begins at once if one may."""
    await _switch(operation, mode="full", action="balancer.start")
    operation.primary.balancer_rounds.want_next()
    return {}


@config_command("_configsvrBalancerStop", write_concern=WriteConcernRule.UNSUPPORTED)
async def balancer_stop(operation: Operation) -> dict[str, Any]:
    """Turn the balancer off, and return when the round that was under way is over.

    Raises:
        CommandError: MaxTimeMSExpired, it is not over in time; the balancer is off nevertheless.
    """
    await _switch(operation, mode="off", action="balancer.stop")
    await operation.primary.balancer_rounds.wait_over()
    return {}


@config_command("_configsvrBalancerStatus", write_concern=WriteConcernRule.UNSUPPORTED)
async def balancer_status(operation: Operation) -> dict[str, Any]:
    """Report the state of the switch, and of the rounds of this term.

    If the settings are not valid, the mode is the last one that was, as in MongoDB.
    """
    document = await operation.primary.catalog.find_by_id("settings", BALANCER_ID)
    rounds = operation.primary.balancer_rounds
    try:
        mode = BalancerSettings.from_document(document).mode
    except CommandError:
        mode = rounds.mode
    return {
        "mode": mode,
        "inBalancerRound": rounds.is_balancing,
        "numBalancerRounds": rounds.number,
        "term": operation.primary.term,
    }


async def _switch(operation: Operation, *, mode: str, action: str) -> None:
    is_on = mode != "off"

    async def work(transaction: Transaction) -> None:
        for key, settings in ((BALANCER_ID, {"mode": mode, "stopped": not is_on}), (AUTO_SPLIT_ID, {"enabled": is_on})):
            document = await transaction.find_one("settings", {"_id": key})
            transaction.put("settings", [{**(document or {"_id": key}), **settings}])

    await operation.primary.catalog.transaction(work)
    await operation.primary.changelog.log_action(action, {}, client_address=operation.client_address)
