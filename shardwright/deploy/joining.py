"""The commands `shardwright init-set` and `shardwright join`, which make a running mongod and its daemon a member.

Both check the state before each step, so that a command repeated after a failure continues. A replica set has the
addresses of its mongods, and the catalog of shards the addresses of their daemons.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure, PyMongoError

from shardwright.deploy import command_parser
from shardwright.deploy.errors import DeployError, reason
from shardwright.deploy.host_files import CONFIGURATION, HostMember, read_config_servers, read_member, read_router
from shardwright.deploy.member_states import (
    Progress,
    WrongStateError,
    check_identity,
    check_listed,
    extended,
    progress,
)
from shardwright.deploy.mongod import connect
from shardwright.deploy.steps import Steps

_ALREADY_INITIALIZED: Final = 23
_REFUSED: Final = (13, 18)
"""Unauthorized, AuthenticationFailed."""

_PASSING: Final = (74, 91, 94, 103, 109, 189, 308, 10107, 11600, 11602, 13435, 13436)
"""Errors that may pass while a member starts, elects or is reconfigured.

NodeNotFound, ShutdownInProgress, NotYetInitialized, NewReplicaSetConfigurationIncompatible, ConfigurationInProgress,
PrimarySteppedDown, CurrentConfigNotCommittedYet, and the errors of a member that is not primary at the moment.
"""

_POLL_SECONDS: Final = 0.25
"""Interval between two checks of a member, which sends no event to a waiting client."""

_TIMEOUT_SECONDS: Final = 600.0
_ATTEMPT_SECONDS: Final = 10.0
_GLANCE_SECONDS: Final = 2.0
"""Time for the hello of a config daemon that need not run yet."""
_ROUTER_SILENT: Final = "the router {} does not answer; /readyz on its metrics port says why"

Client = MongoClient[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Joining:
    """Brings the member of this host into its set.

    Every method raises `DeployError` if a server refuses, does not answer in time, or is in a state that does not fit.

    Attributes:
        deadline: on the monotonic clock.
    """

    member: HostMember
    steps: Steps
    deadline: float

    def initiate(self, others: Sequence[str], router: str | None, config_servers: Sequence[str] = ()) -> None:
        """Initiate the set with this mongod, unless it has a configuration, and wait for a primary.

        Args:
            others: addresses of further mongods, which are running and empty.
            router: of the cluster that the set becomes a shard of; None for config servers.
            config_servers: for config servers, the addresses of the cluster's config daemons, as far as known.
        """
        name, mongod = self.member.replica_set, self.member.mongod
        if self._state_of_mongod() is Progress.EMPTY:
            if router is not None:
                self._wait(lambda: self._check_new(router), _ROUTER_SILENT.format(router))
            self._check_alone(config_servers)
            with self.steps.step(f"initiating {name}"):
                self._initiate([mongod, *others])
        with self.steps.step(f"primary of {name}"):
            self._wait(self._primary, f"the set {name} has no primary: look whether a majority of its members runs")
        self._wait_registered()

    def join(self, through: str) -> None:
        """Add this mongod to the set, unless it is a member already, and wait until it has copied the data."""
        name, mongod = self.member.replica_set, self.member.mongod
        if self._state_of_mongod() is Progress.EMPTY:
            with self.steps.step(f"adding {mongod} to {name}"):
                self._wait(lambda: self._extend(through), f"{through} does not say who is the primary of {name}")
        elif through != self.member.daemon:
            with self.steps.step(f"member {through}"):
                self._wait(lambda: self._is_in_set_of(through), f"{through} does not answer")
        with self.steps.step(f"copying the data of {name}"):
            self._wait(
                lambda: self._progress(mongod) in (Progress.SECONDARY, Progress.PRIMARY) or None,
                f"{mongod} is still copying the data of {name}: run this command again to wait longer; its log "
                "shows the progress",
            )
        self._wait_registered()

    def add_shard(self, router: str) -> None:
        """Add the set to the cluster as a shard of its name, unless the cluster has it."""
        with self.steps.step(f"shard {self.member.replica_set}"):
            self._wait(lambda: self._add_shard(router), _ROUTER_SILENT.format(router))

    def _state_of_mongod(self) -> Progress:
        mongod = self.member.mongod
        with self.steps.step(f"mongod {mongod}"):
            state: Progress = self._wait(lambda: self._progress(mongod), f"the mongod {mongod} does not answer")
            return state

    def _wait_registered(self) -> None:
        """Wait until the daemon's hello shows the set, with the daemon in it."""
        name, daemon = self.member.replica_set, self.member.daemon
        with self.steps.step(f"daemon {daemon}"):
            self._wait(self._is_registered, f"the daemon {daemon} does not show itself as a member of {name}")

    def _wait(self, attempt: Callable[[], Any], otherwise: str) -> Any:  # noqa: ANN401 - whatever the attempt returns
        """Repeat an attempt until its result is not None.

        Raises:
            DeployError: the deadline has passed, or a state does not fit.
        """
        while True:
            error: Exception | None = None
            try:
                found = attempt()
                if found is not None:
                    return found
            except WrongStateError as wrong:
                raise DeployError(str(wrong)) from wrong
            except AutoReconnect as failed:  # nothing listens, or it is restarting (includes server selection)
                error = failed
            except OperationFailure as failed:
                if failed.code not in _PASSING:
                    raise self._refusal(failed) from failed
                error = failed
            except PyMongoError as failed:
                raise DeployError(f"{otherwise}: {reason(failed)}") from failed
            if time.monotonic() > self.deadline:
                detail = f" ({_shortened(error)})" if error is not None else ""
                raise DeployError(f"{otherwise}{detail}") from error
            time.sleep(_POLL_SECONDS)

    def _refusal(self, error: OperationFailure) -> DeployError:
        if error.code in _REFUSED:
            how = "certificate" if self.member.log_in.get("authMechanism") == "MONGODB-X509" else "key"
            return DeployError(
                f"log-in with the cluster's {how} refused: {reason(error)}; every mongod and daemon needs the same"
            )
        return DeployError(f"refused: {reason(error)}")

    def _progress(self, mongod: str) -> Progress:
        with self._client(mongod) as client:
            hello = client.admin.command("hello")
            found = progress(hello, self.member.replica_set, mongod, self.member.daemon)
            if found is Progress.EMPTY:
                self._check_options(client)
            return found

    def _check_options(self, client: Client) -> None:
        """Check the replica set in the options of a mongod without a configuration, whose hello names no set."""
        parsed = client.admin.command("getCmdLineOpts")["parsed"]
        given = parsed.get("replication", {}).get("replSetName") or parsed.get("replication", {}).get("replSet")
        if given != self.member.replica_set:
            raise WrongStateError(
                f"the mongod {self.member.mongod} was started for the replica set {given}, not for "
                f"{self.member.replica_set}; correct replication.replSetName in its file and restart it"
            )

    def _initiate(self, mongods: Sequence[str]) -> None:
        members = [{"_id": index, "host": host} for index, host in enumerate(mongods)]
        with self._client(self.member.mongod) as client:
            try:
                client.admin.command("replSetInitiate", {"_id": self.member.replica_set, "members": members})
            except OperationFailure as error:
                if error.code != _ALREADY_INITIALIZED:  # by an earlier attempt
                    raise DeployError(
                        f"cannot initiate {self.member.replica_set}: {reason(error)}; all of {', '.join(mongods)} "
                        "have to run, reach each other and be empty"
                    ) from error
            except PyMongoError as error:
                raise DeployError(f"cannot initiate {self.member.replica_set}: {reason(error)}") from error

    def _primary(self) -> bool | None:
        with self._client(self.member.mongod) as client:
            hello = client.admin.command("hello")
            progress(hello, self.member.replica_set, self.member.mongod, self.member.daemon)
            return True if hello.get("primary") else None

    def _extend(self, through: str) -> bool | None:
        with self._client(through) as client:
            hello = client.admin.command("hello")
        if hello.get("setName") != self.member.replica_set:
            raise WrongStateError(
                f"{through} is a member of {hello.get('setName', 'no replica set')}, not of {self.member.replica_set}; "
                "name the daemon of a member with --member"
            )
        if "primary" not in hello:
            return None
        with self._client(hello["primary"]) as client:
            configuration = client.admin.command("replSetGetConfig")["config"]
            wanted = extended(configuration, self.member.mongod)
            if wanted is not None:
                client.admin.command("replSetReconfig", wanted)
        return True

    def _is_in_set_of(self, through: str) -> bool:
        own, others = map(self._configuration_at, (self.member.mongod, through))
        check_identity(own, others, self.member.replica_set, through)
        return True

    def _configuration_at(self, address: str) -> Mapping[str, Any]:
        with self._client(address) as client:
            configuration: Mapping[str, Any] = client.admin.command("replSetGetConfig")["config"]
            return configuration

    def _is_registered(self) -> bool | None:
        with self._client(self.member.daemon) as client:
            hello = client.admin.command("hello")
        if "setUpError" in hello:
            raise WrongStateError(str(hello["setUpError"]))
        return True if hello.get("me") == self.member.daemon and hello.get("primary") else None

    def _check_alone(self, config_servers: Sequence[str]) -> None:
        """Refuse to initiate a second set of config servers; daemons that do not answer are not waited for."""
        name = self.member.replica_set
        for address in config_servers:
            hello: dict[str, Any] = {}
            with (
                suppress(PyMongoError),
                connect(address, _GLANCE_SECONDS, self.member.log_in) as client,
            ):
                hello = client.admin.command("hello")
            if hello.get("setName") == name and hello.get("primary"):
                raise DeployError(
                    f"{name} is already initiated at {address}; add this member with `shardwright join {name} --member "
                    f"{address}`"
                )

    def _check_new(self, router: str) -> bool:
        """Refuse to initiate a second set with the name of a shard."""
        name = self.member.replica_set
        with self._client(router) as client:
            listed = _listed(client)
        if name in listed:
            raise WrongStateError(
                f"the cluster already has the shard {name} at {listed[name]}; add this member to it with `shardwright "
                f"join {name} --member {listed[name].partition('/')[2].partition(',')[0]}`"
            )
        return True

    def _add_shard(self, router: str) -> bool:
        name = self.member.replica_set
        with self._client(router) as client:
            listed = _listed(client)
            if name not in listed:
                client.admin.command("addShard", f"{name}/{self.member.daemon}", name=name)
                return True
        with self._client(self.member.daemon) as client:
            check_listed(listed[name], client.admin.command("hello"), name)
        return True

    @contextmanager
    def _client(self, address: str) -> Iterator[Client]:
        seconds = min(_ATTEMPT_SECONDS, max(_POLL_SECONDS, self.deadline - time.monotonic()))
        with connect(address, seconds, self.member.log_in) as client:
            yield client


def _listed(client: Client) -> dict[str, str]:
    """Return the connection strings of the shards by their names."""
    return {each["_id"]: each["host"] for each in client.admin.command("listShards")["shards"]}


def _shortened(error: Exception | None) -> str:
    """Return an error of the driver without the description of its topology."""
    text = reason(error) if isinstance(error, PyMongoError) else str(error)
    return text.partition(" (configured")[0].partition(", Timeout")[0]


def add_options(init_set: argparse.ArgumentParser, join: argparse.ArgumentParser) -> None:
    """Add the options of both commands."""
    for parser in (init_set, join):
        parser.add_argument("set", metavar="SET", help="name of the replica set, for example shard0")
        parser.add_argument(
            "--config-dir",
            type=Path,
            default=CONFIGURATION,
            metavar="DIR",
            help="directory with the daemon's file, shardd-SET.yaml or configd-SET.yaml (default: %(default)s)",
        )
        parser.add_argument(
            "--timeout",
            type=command_parser.amount,
            default=_TIMEOUT_SECONDS,
            metavar="SECONDS",
            help="give up after this long; the next attempt continues (default: %(default)g)",
        )
    init_set.add_argument(
        "--with",
        dest="others",
        type=command_parser.address,
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="another mongod that becomes a member at once; may be given several times",
    )
    init_set.add_argument(
        "--router",
        type=command_parser.address,
        metavar="HOST:PORT",
        help="router that adds the shard to the cluster (default: this host's, as router.yaml describes it)",
    )
    join.add_argument(
        "--member",
        required=True,
        type=command_parser.address,
        metavar="HOST:PORT",
        help="the daemon of a member that the set has",
    )


def init_set(options: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    member = read_member(options.config_dir, options.set)
    router = (options.router or read_router(options.config_dir)) if member.is_shard else None
    if member.is_shard and router is None:
        raise DeployError(f"{options.config_dir} has no router.yaml: name a router of the cluster with --router")
    joining = Joining(member, Steps(), time.monotonic() + options.timeout)
    joining.initiate(options.others, router, () if member.is_shard else read_config_servers(options.config_dir))
    if router is not None:
        joining.add_shard(router)
    return 0


def join(options: argparse.Namespace) -> int:
    """Run the command, as `init_set`."""
    member = read_member(options.config_dir, options.set)
    Joining(member, Steps(), time.monotonic() + options.timeout).join(options.member)
    return 0
