"""The drivers' own log-ins: PyMongo's tests of them, Node's driver, and mongosh's helpers."""

import subprocess
from pathlib import Path
from typing import Final

from shardwright.mongosh_compat.runner import run_script
from tests.access_control.users import PASSWORD
from tests.local_cluster import RunningCluster
from tests.pymongo_suite.deployments import create_suite_user
from tests.pymongo_suite.part import check_file

SCRIPTS: Final = Path(__file__).parent / "scripts"
SECONDS_MAX: Final = 120.0
ROOT: Final = "chief"


def test_pymongos_own_tests_of_log_ins(closed: RunningCluster, tmp_path: Path) -> None:
    with closed.direct("router.0") as root:
        create_suite_user(root)
    check_file(closed, tmp_path, "test_auth", passed_min=7)


def test_nodes_driver_logs_in(closed: RunningCluster) -> None:
    command = ["node", "--unhandled-rejections=strict", str(SCRIPTS / "log_in.mjs")]
    arguments = [closed.address("router.0"), ROOT, PASSWORD]
    completed = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert (completed.returncode, completed.stdout) == (0, "done\n"), completed.stderr


def test_mongosh_logs_in_and_manages_users(closed: RunningCluster) -> None:
    uri = f"mongodb://{ROOT}:{PASSWORD}@{closed.address('router.0')}/?authSource=admin&directConnection=true"
    variables = {"rootName": ROOT, "rootPassword": PASSWORD}
    run_script(uri, SCRIPTS / "log_in.js", variables=variables, timeout=SECONDS_MAX).check()
