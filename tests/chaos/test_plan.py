"""Plans of a run: the choices that a seed determines."""

from tests.chaos.nemeses import NEEDS_MEMBERS, NEMESES
from tests.chaos.plan import NEMESES_PER_ROUND, WORKLOADS_PER_ROUND, Plan
from tests.chaos.workloads import WORKLOADS


def test_a_seed_chooses_the_same_again() -> None:
    plans = [Plan.choose(seed, 600) for seed in ("a", "a")]
    assert plans[0] == plans[1]
    assert [plans[0].round(number) for number in range(20)] == [plans[1].round(number) for number in range(20)]


def test_rounds_choose_of_everything_in_time() -> None:
    plan = Plan.choose("a", 600, members=3)
    rounds = [plan.round(number) for number in range(100)]
    assert {name for workloads, _ in rounds for name in workloads} == WORKLOADS.keys()
    assert {kind for _, nemeses in rounds for kind in nemeses} == set(NEMESES)
    assert all(len(workloads) == WORKLOADS_PER_ROUND for workloads, _ in rounds)
    assert all("moves" in nemeses and len(nemeses) <= 1 + NEMESES_PER_ROUND for _, nemeses in rounds)


def test_what_is_given_is_kept() -> None:
    plan = Plan.choose("a", 600, workloads=["sets"], nemeses=["kills"], members=1)
    assert plan.round(7) == (["sets"], ["kills"])
    assert plan.shape.members == plan.shape.config_members == 1
    assert not plan.shape.has_links
    assert not NEEDS_MEMBERS.intersection(Plan.choose("a", 600, members=1).nemeses)
    assert Plan.choose("a", 600, nemeses=["links"]).shape.has_links
