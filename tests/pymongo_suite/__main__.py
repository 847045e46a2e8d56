"""Runs PyMongo's suite, and Motor's, on a plain replica set and on a cluster, and prints how they compare by file.

``python -m tests.pymongo_suite [FILE…] [--replica-set HOST:PORT | --reuse] [--cluster HOST:PORT] [--tests EXPRESSION]``

Exit status 1 if a test is lost that ``exceptions.md`` does not list, or if it lists one that is not.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.pymongo_suite.comparison import Comparison
from tests.pymongo_suite.deployments import closed_cluster, closed_replica_set, cluster, replica_set
from tests.pymongo_suite.exceptions import read_exceptions
from tests.pymongo_suite.files import AUTHENTICATION, MOTOR, PYMONGO
from tests.pymongo_suite.results import Results
from tests.pymongo_suite.suite_run import SuiteError, SuiteRun
from tests.pymongo_suite.table import table
from tests.source_distributions import ROOT

_REPORTS: Final = ROOT / "build" / "pymongo_suite"


def main() -> int:
    """Run the files that the command line names, or all."""
    options = _options()
    with ExitStack() as deployments:
        data = Path(deployments.enter_context(tempfile.TemporaryDirectory(prefix="pymongo_suite")))
        files = options.files or (*PYMONGO, *MOTOR, *AUTHENTICATION)
        comparisons = []
        for closed, chosen in groupby(sorted(files, key=AUTHENTICATION.__contains__), AUTHENTICATION.__contains__):
            plain = None
            if not options.reuse:
                start = closed_replica_set if closed else replica_set
                plain = options.replica_set or deployments.enter_context(start(data / f"replica_set_{closed}"))
            begin = closed_cluster if closed else cluster
            sharded = options.cluster or deployments.enter_context(begin(data / f"cluster_{closed}"))
            comparisons += [_compare(file, plain, sharded, options.tests) for file in chosen]
    print(table(comparisons))
    return int(any(one.unexpected or (one.outdated and not options.tests) for one in comparisons))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.pymongo_suite")
    parser.add_argument("files", nargs="*", metavar="FILE", help="a file of the suite, such as test_cursor")
    parser.add_argument("--replica-set", metavar="HOST:PORT", help="run on this primary instead of a new one")
    parser.add_argument("--cluster", metavar="HOST:PORT", help="run on this router instead of that of a new cluster")
    parser.add_argument(
        "--reuse", action="store_true", help="run on the cluster only, and compare with the last results"
    )
    parser.add_argument("--tests", metavar="EXPRESSION", help="only tests that match, as pytest's -k")
    return parser.parse_args()


def _compare(file: str, plain: str | None, sharded: str, tests: str | None) -> Comparison:
    arguments = ["-k", tests] if tests else []
    on_replica_set = _on_replica_set(file, plain, *arguments)
    on_cluster = _on_cluster(file, sharded, *arguments)
    if tests:
        on_replica_set = {test: outcome for test, outcome in on_replica_set.items() if test in on_cluster}
    comparison = Comparison(file, on_replica_set, on_cluster, read_exceptions().get(file, frozenset()))
    print(f"{file}: {len(comparison.lost)} lost", file=sys.stderr)
    return comparison


def _on_replica_set(file: str, address: str | None, *arguments: str) -> Results:
    run = SuiteRun(address or "", _REPORTS / "replica_set")
    return run.last(file) if address is None else run.run(file, *arguments)


def _on_cluster(file: str, address: str, *arguments: str) -> Results:
    """The results on the cluster: none, so that all tests count as lost, if the file could not be run to its end."""
    try:
        return SuiteRun(address, _REPORTS / "cluster").run(file, *arguments)
    except SuiteError as error:
        print(error, file=sys.stderr)
        return {}


if __name__ == "__main__":
    sys.exit(main())
