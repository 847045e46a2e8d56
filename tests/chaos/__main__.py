"""``python -m tests.chaos``: what ``make chaos`` runs."""

import argparse
import secrets
import sys
from pathlib import Path

from tests.chaos.run import run_chaos

SECONDS_PER_MINUTE = 60


def main() -> int:
    """Run, print the summary, and return 1 if there were anomalies."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--seed", default="", help="chooses moves and faults (default: a random one, which is printed)")
    parser.add_argument("--members", type=int, default=1, help="members of each shard (default: 1)")
    parser.add_argument("--dir", type=Path, default=Path(".chaos"), help="where it runs and what it keeps lie")
    options = parser.parse_args()
    seed = options.seed or secrets.token_hex(4)
    print(f"chaos for {options.minutes:g} minutes, SEED={seed}", flush=True)
    directory = options.dir.resolve() / f"seed-{seed}"
    if directory.exists():
        parser.error(f"{directory} holds what an earlier run has kept; remove it or use another seed")
    seconds = options.minutes * SECONDS_PER_MINUTE
    summary = run_chaos(directory, seconds=seconds, seed=seed, members=options.members)
    print(summary)
    return 1 if summary.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
