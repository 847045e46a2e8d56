"""``shardwright-router``: the entry point, which is quick to import."""

import sys

from shardwright.daemon.signal_mask import mask_signals


def main() -> int:
    """Run a router until it is asked to stop; returns the exit code."""
    mask_signals()
    # Takes up to a second, during which a signal would kill the process.
    from shardwright.router.command_line import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
