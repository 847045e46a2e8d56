"""The ``shardwright`` command, and the programs that it runs.

mongosh and tail replace its process; the console runs alongside a cluster.
"""

import argparse
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

from bson.json_util import dumps

from shardwright.console.cli import ConsoleError, RoutingCommandError, is_uri, run_console, run_explain, run_lint
from shardwright.deploy.balancing import explanation_text, status_text
from shardwright.deploy.certs import run_command as run_certs
from shardwright.deploy.cluster import LocalCluster, json_line
from shardwright.deploy.cluster_state import DAEMONS
from shardwright.deploy.command_line import argument_parser
from shardwright.deploy.command_parser import completion_script
from shardwright.deploy.doctor import EXIT_FINDINGS, findings_json, findings_text, gather, of_connection_string
from shardwright.deploy.doctor_checks import examine
from shardwright.deploy.errors import DeployError, os_reason
from shardwright.deploy.joining import init_set, join
from shardwright.deploy.mongod import client_of, find_mongod
from shardwright.deploy.observing import ClusterObserver, inconsistencies_text
from shardwright.deploy.planned_files import run_command as run_plan
from shardwright.deploy.processes import signals_interrupt
from shardwright.deploy.status import cluster_text, how_to_connect, process_table, watch
from shardwright.deploy.steps import Steps
from shardwright.deploy.up import UpOptions
from shardwright.deploy.upgrade import run_finish_upgrade
from shardwright.mongosh_compat.jstests.command import run_command as run_jstests
from shardwright.mongosh_compat.runner import MongoshNotFoundError, find_mongosh
from shardwright.sync.cli import SyncCommandError
from shardwright.sync.cli import run_command as run_sync

URI_VARIABLE: Final = "SHARDWRIGHT_URI"
"""The environment variable for the connection string, because every user of the machine can read command lines."""

_CONNECT_SCRIPT: Final = f"db = connect(process.env.{URI_VARIABLE}); delete process.env.{URI_VARIABLE}; void 0"

_CONSOLE_STOP_SECONDS_MAX: Final = 10.0

EXIT_INCONSISTENT: Final = 2
"""The exit status of `shardwright check` after findings; errors exit with 1."""

EXIT_OUTPUT_CLOSED: Final = 141
"""The exit status that a shell reports for a program ended by SIGPIPE."""

EXIT_INTERRUPTED: Final = 130
"""The exit status that a shell reports for a command ended by SIGINT."""


@dataclass(frozen=True)
class Program:
    """A program to run."""

    words: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def replace_this_process(self) -> None:
        """Run the program in place of this process."""
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
        try:
            os.execvpe(self.words[0], list(self.words), {**os.environ, **self.environment})
        except OSError as error:
            raise DeployError(f"cannot run {shlex.join(self.words[:1])}: {error.strerror}") from error


def mongosh(document: dict[str, Any], words: Sequence[str]) -> Program:
    """Return the mongosh that connects to a cluster and logs in as its first user.

    Args:
        words: further words of its command line; with a script, mongosh exits after it.
    """
    try:
        program = find_mongosh()
    except MongoshNotFoundError as error:
        raise DeployError(str(error)) from error
    stay = () if any(word in ("--eval", "--file", "-f") or word.endswith(".js") for word in words) else ("--shell",)
    uri = connection_string(document)
    return Program([program, "--nodb", *stay, "--eval", _CONNECT_SCRIPT, *words], {URI_VARIABLE: uri})


def connection_string(document: dict[str, Any]) -> str:
    """Return the connection string of a cluster with all client options, possibly including a password."""
    uri, access, tls = str(document["uri"]), document.get("auth"), document.get("tls")
    parameters: dict[str, str] = {}
    if access is not None:
        try:
            password = Path(access["passwordFile"]).read_text(encoding="ascii")
        except OSError as error:
            raise DeployError(f"cannot read the password in {access['passwordFile']}: {error.strerror}") from error
        user = f"{quote_plus(access['user'])}:{quote_plus(password)}"
        uri = uri.replace("mongodb://", f"mongodb://{user}@", 1)
        parameters["authSource"] = access["database"]
    if tls is not None:
        parameters["tls"] = "true"
        parameters["tlsCAFile"] = tls["caFile"]
        parameters["tlsCertificateKeyFile"] = tls["clientCertificateFile"]
    return f"{uri}?{urlencode(parameters)}" if parameters else uri


def tail(log: Path, lines: int, *, follows: bool) -> Program:
    """Return the program that prints the end of a log.

    Args:
        follows: whether to continue with new lines, also after a rotation.
    """
    if not log.exists():
        raise DeployError(f"there is no log {log}: the process was never started")
    return Program(["tail", "-n", str(lines), *(("-F",) if follows else ()), str(log)])


@contextmanager
def console_beside(directory: Path, port: int | None) -> Iterator[str | None]:
    """Run a console within the block; yields the line with its address.

    Args:
        port: of the console, 0 for any free one; None for no console.
    """
    if port is None:
        yield None
        return
    log = directory / "logs" / "console.log"
    words = ["console", str(directory), "--port", str(port), "--log-file", str(log)]
    command = [sys.executable, "-m", "shardwright.deploy.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline().strip() if process.stdout is not None else ""
            if not line:
                raise DeployError(f"the console did not start: see {log}")
            yield line
        finally:
            process.terminate()
            try:
                process.wait(_CONSOLE_STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = argument_parser().parse(sys.argv[1:] if arguments is None else arguments)
    try:
        with signals_interrupt():
            status = _COMMANDS[options.command](options)
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        # The reader of the output, for example head, has ended. Python flushes the rest at exit, so it goes elsewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OUTPUT_CLOSED
    except DeployError as error:
        print(f"shardwright: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        if error.filename is None:
            raise
        print(f"shardwright: cannot use {os_reason(error)}", file=sys.stderr)
        return DeployError.exit_status
    except KeyboardInterrupt:
        print("shardwright: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _is_output_closed() -> bool:
    """Whether the standard output is a pipe without a reader."""
    output = select.poll()
    output.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def _up(options: argparse.Namespace) -> int:
    if options.detach and options.console_port is not None:
        raise DeployError("--console-port needs the foreground: with --detach, run `shardwright console` afterwards")
    steps = Steps(sys.stderr if options.json else sys.stdout)
    cluster = LocalCluster(options.dir, steps)
    cluster.up(
        UpOptions(
            shards=options.shards,
            members=options.members,
            config_members=options.config_members,
            routers=options.routers,
            port=options.port,
            mongod=options.mongod,
            workers=options.workers,
            cache_gb=options.cache_gb,
            log_rotate=options.log_rotate,
            parameters=dict(options.parameters),
            daemon_options={role: dict(getattr(options, f"{role}_options")) for role in DAEMONS},
            separate_sockets=options.separate_sockets,
            auth=options.auth,
            tls=options.tls,
            cluster_auth_mode=options.cluster_auth_mode,
            start_timeout=options.timeout,
        )
    )
    try:
        document = cluster.describe()
        with console_beside(options.dir, options.console_port) as console:
            if options.json:
                print(json_line(document), flush=True)
            else:
                steps.say(how_to_connect(document))
            if console is not None:
                steps.say(console)
            if not options.detach:
                steps.say("Ctrl-C stops the cluster and keeps its data")
                cluster.watch()
                steps.say("the cluster was stopped")
    except KeyboardInterrupt:
        steps.say("")
        cluster.down()
    return 0


def _down(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).down()
    return 0


def _status(options: argparse.Namespace) -> int:
    cluster = LocalCluster(options.dir, Steps())
    document = {
        **cluster.describe(),
        "migrations": cluster.migrations(),
        "reshardings": cluster.reshardings(),
    }
    print(json_line(document) if options.json else cluster_text(document))
    return 0 if all(process["pid"] for process in document["processes"]) else 1


def _ps(options: argparse.Namespace) -> int:
    found = LocalCluster(options.dir, Steps()).process_list()
    print(json_line({"processes": found}) if options.json else process_table(found))
    return 0


def _logs(options: argparse.Namespace) -> int:
    cluster = LocalCluster(options.dir, Steps())
    tail(cluster.log(options.name), options.lines, follows=options.follow).replace_this_process()
    return 0


def _connect(options: argparse.Namespace) -> int:
    mongosh(LocalCluster(options.dir, Steps()).describe(), options.words).replace_this_process()
    return 0


def _destroy(options: argparse.Namespace) -> int:
    cluster = LocalCluster(options.dir, Steps())
    if not options.yes and not _is_confirmed(f"delete all data in {cluster.directory}?"):
        raise DeployError("nothing was deleted")
    cluster.destroy()
    return 0


def _is_confirmed(question: str) -> bool:
    """Whether the user confirms."""
    if not sys.stdin.isatty():
        raise DeployError("give --yes, because there is no terminal to ask")
    return input(f"shardwright: {question} [y/N] ").strip().lower() in ("y", "yes")


def _completion(options: argparse.Namespace) -> int:
    print(completion_script(options.shell, argument_parser()), end="")
    return 0


def _kill(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).kill(options.name, options.signal)
    return 0


def _restart(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).restart(options.name, options.timeout)
    return 0


def _rotate_key(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).rotate_key(options.timeout)
    return 0


def _cluster_auth_mode(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).change_cluster_auth_mode(options.mode)
    return 0


def _add_shard(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).add_shard(options.members, options.timeout)
    return 0


def _remove_shard(options: argparse.Namespace) -> int:
    LocalCluster(options.dir, Steps()).remove_shard(options.name)
    return 0


def _balancer(options: argparse.Namespace) -> int:
    cluster = LocalCluster(options.dir, Steps())
    document = cluster.balancer(options.action)
    if options.explain:
        document |= cluster.explain_balancer()
    if options.json:
        print(json_line(document))
    else:
        print(status_text(document))
        if options.explain:
            print(explanation_text(document))
    return 0


def _check(options: argparse.Namespace) -> int:
    found = LocalCluster(options.dir, Steps()).check(indexes=options.indexes)
    print(dumps({"inconsistencies": found}) if options.json else inconsistencies_text(found))
    return EXIT_INCONSISTENT if found else 0


def _doctor(options: argparse.Namespace) -> int:
    if options.uri is None:
        facts = LocalCluster(options.dir, Steps()).facts()
    else:
        facts = gather(*of_connection_string(options.uri, options.key_file))
    found = examine(facts)
    print(findings_json(found) if options.json else findings_text(found))
    return EXIT_FINDINGS if found else 0


def _monitor_config(options: argparse.Namespace) -> int:
    files = ClusterObserver(options.dir).write_monitor_config(options.out)
    print("\n".join(map(str, files)))
    return 0


def _map(options: argparse.Namespace) -> int:
    print(ClusterObserver(options.dir).chunk_map(options.namespace))
    return 0


def _top(options: argparse.Namespace) -> int:
    watch(
        ClusterObserver(options.dir).metrics_addresses,
        partial(print, end="", flush=True),
        time.sleep,
        seconds=options.interval,
        times=options.times,
        is_terminal=sys.stdout.isatty(),
    )
    return 0


def _console(options: argparse.Namespace) -> int:
    def announce(address: str) -> None:
        print(f"the console is at {address}", flush=True)

    try:
        if is_uri(options.cluster):
            run_console(options, options.cluster, announce)
        else:
            seen = ClusterObserver(Path(options.cluster or options.dir)).console()
            run_console(
                options,
                seen.uri,
                announce,
                title=seen.title,
                targets=seen.targets,
                client_options=seen.client_options,
            )
    except ConsoleError as error:
        raise DeployError(str(error)) from error
    return 0


def _explain(options: argparse.Namespace) -> int:
    return _about_routing(options, run_explain)


def _lint(options: argparse.Namespace) -> int:
    return _about_routing(options, run_lint)


def _about_routing(
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace, str, Mapping[str, Any], Callable[[str], object]], int],
) -> int:
    try:
        uri, client_options = (options.uri, {}) if options.uri is not None else ClusterObserver(options.dir).client()
        client_of(uri, client_options).close()
        return run(options, uri, client_options, print)
    except RoutingCommandError as error:
        raise DeployError(str(error)) from error


def _jstest(options: argparse.Namespace) -> int:
    try:
        return run_jstests(options, [sys.executable, "-m", "shardwright.deploy.cli"], find_mongod())
    except (FileNotFoundError, MongoshNotFoundError) as error:
        raise DeployError(str(error)) from error


def _sync(options: argparse.Namespace) -> int:
    try:
        return run_sync(options, sys.stdout, lambda uri, subject: client_of(uri, {}, subject).close())
    except SyncCommandError as error:
        raise DeployError(str(error)) from error


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "up": _up,
    "down": _down,
    "status": _status,
    "ps": _ps,
    "logs": _logs,
    "connect": _connect,
    "kill": _kill,
    "restart": _restart,
    "destroy": _destroy,
    "completion": _completion,
    "doctor": _doctor,
    "finish-upgrade": run_finish_upgrade,
    "rotate-key": _rotate_key,
    "cluster-auth-mode": _cluster_auth_mode,
    "add-shard": _add_shard,
    "remove-shard": _remove_shard,
    "balancer": _balancer,
    "check": _check,
    "monitor-config": _monitor_config,
    "map": _map,
    "explain": _explain,
    "lint": _lint,
    "top": _top,
    "certs": run_certs,
    "plan": run_plan,
    "init-set": init_set,
    "join": join,
    "console": _console,
    "jstest": _jstest,
    "sync": _sync,
}


if __name__ == "__main__":
    sys.exit(main())
