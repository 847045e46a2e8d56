"""``shardwright-configd``: the entry point, which is quick to import."""

import sys

from shardwright.daemon.signal_mask import mask_signals


def main() -> int:
    """Run a config daemon until it receives a signal to shut down; returns the exit code."""
    mask_signals()
    from shardwright.configd.service import run  # takes up to a second, in which a signal would kill the process

    return run()


if __name__ == "__main__":
    sys.exit(main())
