"""``python -m tests.chaos``: what ``make chaos`` runs."""

import argparse
import secrets
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from tests.chaos.nemeses import NEMESES
from tests.chaos.plan import ROUND_SECONDS, Plan
from tests.chaos.run import run_chaos
from tests.chaos.workloads import WORKLOADS

SECONDS_PER_MINUTE = 60


def main() -> int:
    """Run, print the summary, and return 1 if there were anomalies."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", default="", help="chooses everything else (default: a random one, which is printed)")
    parser.add_argument("--members", type=int, help="members of each shard and of the config servers (default: 1 or 3)")
    parser.add_argument(
        "--workloads", type=_some_of(WORKLOADS), default=(), help=f"some of {','.join(WORKLOADS)} (default: all)"
    )
    parser.add_argument(
        "--nemeses", type=_some_of(NEMESES), default=(), help=f"some of {','.join(NEMESES)} (default: all)"
    )
    parser.add_argument(
        "--round-seconds", type=float, default=ROUND_SECONDS, help=f"until checks are made (default: {ROUND_SECONDS:g})"
    )
    parser.add_argument("--dir", type=Path, default=Path(".chaos"), help="where it runs and what it keeps lie")
    options = parser.parse_args()
    # As Ctrl-C does, so that nothing stays running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = options.seed or secrets.token_hex(4)
    print(f"chaos for {options.minutes:g} minutes, SEED={seed}", flush=True)
    directory = options.dir.resolve() / f"seed-{seed}"
    if directory.exists():
        parser.error(f"{directory} holds what an earlier run has kept; remove it or use another seed")
    plan = Plan.choose(
        seed,
        options.minutes * SECONDS_PER_MINUTE,
        workloads=options.workloads,
        nemeses=options.nemeses,
        members=options.members,
        round_seconds=options.round_seconds,
    )
    summary = run_chaos(directory, plan, lambda text: print(text, flush=True))
    print(summary)
    return 1 if summary.anomalies else 0


def _some_of(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(known)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
