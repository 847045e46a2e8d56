"""``shardwright-shardd``: an entry point that imports quickly."""

import sys

from shardwright.daemon.signal_mask import mask_signals


def main() -> int:
    """Run a shard daemon until a signal or command stops it; return the exit code."""
    mask_signals()
    from shardwright.shardd.service import run  # slow; an unmasked signal would kill the process

    return run()


if __name__ == "__main__":
    sys.exit(main())
