"""The states of a resharding operation: only the way forward, and abort before the decision."""

from itertools import pairwise, product

import pytest

from shardwright.sharding.resharding_participation import (
    DECIDED,
    CoordinatorState,
    RecipientState,
    has_reached,
    may_follow,
)

WAY = [each for each in CoordinatorState if each is not CoordinatorState.ABORTING]


def test_the_way_forward_has_no_short_cuts() -> None:
    allowed = {(one, other) for one, other in product(WAY, WAY) if may_follow(one, other)}
    assert allowed == set(pairwise(WAY))


@pytest.mark.parametrize("state", CoordinatorState)
def test_abort_is_possible_until_the_decision(state: CoordinatorState) -> None:
    assert may_follow(state, CoordinatorState.ABORTING) == (state not in DECIDED)


def test_a_recipient_has_reached_what_is_behind_it() -> None:
    assert has_reached(RecipientState.STRICT_CONSISTENCY, RecipientState.APPLYING)
    assert has_reached(RecipientState.APPLYING, RecipientState.APPLYING)
    assert not has_reached(RecipientState.CLONING, RecipientState.APPLYING)


@pytest.mark.parametrize("state", [each for each in RecipientState if each is not RecipientState.ERROR])
def test_a_recipient_that_failed_has_reached_nothing_else(state: RecipientState) -> None:
    assert not has_reached(RecipientState.ERROR, state)
    assert not has_reached(state, RecipientState.ERROR)
    assert has_reached(RecipientState.ERROR, RecipientState.ERROR)
