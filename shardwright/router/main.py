"""Entry point of ``shardwright-router``, which is quick to import."""

import sys

from shardwright.daemon.signal_mask import mask_signals


def main() -> int:
    """Run a router until it receives a signal to stop; returns the exit code."""
    mask_signals()
    # Takes up to a second, during which a signal would kill the process.
    from shardwright.router.service import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
