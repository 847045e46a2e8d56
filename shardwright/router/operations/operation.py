"""A request being executed by the router, and the entry of its command in the table of all commands.

The table is in `router.commands.router_commands`. The dispatcher's stages do the work that all commands have in common:
metrics, deadlines, errors, replies. A handler has only the work of its own command.
"""

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import bson

from shardwright.daemon.command_table import Command
from shardwright.daemon.users import UserName
from shardwright.router.context.router_context import RouterContext
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.find_arguments import FindArguments
from shardwright.router.reads.result_merger import Order
from shardwright.router.replies import reply_builder
from shardwright.router.replies.reply_builder import Reply, signed
from shardwright.router.transactions.router_transaction import RouterTransaction
from shardwright.router.transactions.transaction_sender import TransactionSender
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, TXN_NUMBER
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply
from shardwright.wire.passages import EPOCH
from shardwright.wire.rawbson import decode_document, from_elements
from shardwright.wire.read_preference import PRIMARY, READ_PREFERENCE, ReadPreference
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from shardwright.router.exec.stage import Relayed
    from shardwright.router.transactions.transaction_table import RouterSession
    from shardwright.sharding.routing_table import RoutingTable

_READ_PREFERENCES_KEPT: Final = 64
"""Number of cached read preferences. Applications use few different ones."""

_READ_PREFERENCE_BYTES_KEPT: Final = 512


class Merged(NamedTuple):
    """A find on several shards whose first batch was the whole result.

    Attributes:
        shards: the shards in the order of the merge.
        order: the order of the results; None for any.
        has_sort_keys: whether shards added sort keys, if there is an order.
        share: the limit that was sent to each shard; None for the client's own.
    """

    shards: tuple[str, ...]
    arguments: FindArguments
    order: Order | None
    has_sort_keys: bool
    share: int | None

    def body_for_shards(self, body: bytes) -> bytes:
        """Convert the client's command for each of the shards."""
        return self.arguments.body_for_shards(body, has_sort_keys=self.has_sort_keys, share=self.share)


class PassedOn(NamedTuple):
    """The routing of an operation that was forwarded to one shard, or to several whose replies were merged.

    Attributes:
        shard_id: the shard; the first one of several.
        kind: the kind of a write with statements; None for other operations.
        preference: the read preference that selected the members.
        elements: further elements of the shard's request after the versions.
        merged: the merge of the replies of several shards; None for one shard.
    """

    routing: CollectionRouting
    shard_id: str
    kind: WriteKind | None = None
    preference: ReadPreference = PRIMARY
    elements: bytes = b""
    merged: Merged | None = None


class ContinuedOn(NamedTuple):
    """The cursor on one shard that a ``getMore`` was passed on to.

    Attributes:
        namespace: the cursor's ``db.collection``.
    """

    namespace: str


class Operation:
    """A client's request in execution.

    Attributes:
        request: the request to execute, possibly rewritten.
        origin: the client's original request.
        targeted: the shards it has been sent to so far, for the log.
        table: the routing table by which it was last sent to shards; None for an unsharded collection.
        awaited_routing: whether it waited for a routing table refresh.
        response_to: the message that the next reply answers: the request, or in an exhaust stream the previous reply.
        sender: sends requests to shards, within the transaction if there is one.
        transaction: the transaction that it belongs to or ends; None outside of transactions.
        started: its start, on the clock of `time.perf_counter`.
        operation_time: the packed time of its data, if it is known to be earlier than the newest time seen.
        opid: its number for ``killOp``, once ``$currentOp`` has shown it.
        begun_routing: the routing of a request that was sent before (`operations.begun_operation`).
        begun_shares: the limit that such a request to several shards had for each of them, as `Merged.share`; empty if
            there is no such request.
        begun_session: the checked-out session, if such a request was sent in a transaction; None otherwise, or after
            its statement has continued.
        passed_on: set if a passage can repeat it.
        relayed: the size of its reply if it was relayed as it arrived.
        max_time_ms: the time limit that the client has set; 0 for none.
        epoch: the number of the epoch (`wire.passages`) in which it began.
    """

    __slots__ = (
        "_namespace",
        "_read_preference",
        "awaited_routing",
        "begun_routing",
        "begun_session",
        "begun_shares",
        "client",
        "context",
        "epoch",
        "max_time_ms",
        "operation_time",
        "opid",
        "origin",
        "passed_on",
        "relayed",
        "request",
        "response_to",
        "retries",
        "sender",
        "started",
        "table",
        "targeted",
        "transaction",
    )

    def __init__(self, context: RouterContext, client: ClientConnection, request: Request) -> None:
        self.context = context
        self.client = client
        self.request = self.origin = request
        self.targeted: tuple[str, ...] = ()
        self.retries = 0
        self.table: RoutingTable | None = None
        self.awaited_routing = False
        self.response_to = request.message.request_id
        self.started = perf_counter()
        self.operation_time = 0
        self.opid: int | None = None
        self.sender = context.sender
        self.transaction: RouterTransaction | None = None
        self.begun_routing: CollectionRouting | None = None
        self.begun_session: RouterSession | None = None
        self.begun_shares: tuple[int | None, ...] = ()
        self.passed_on: PassedOn | ContinuedOn | None = None
        self.relayed: Relayed | None = None
        self.max_time_ms = 0
        self.epoch = EPOCH.number
        self._namespace: str | None = None
        self._read_preference: ReadPreference | None = None

    @classmethod
    def of_router(cls, context: RouterContext, request: Request) -> "Operation":
        """Create an operation of the router itself, without a client. It may write, but opens no cursor."""
        operation = cls.__new__(cls)
        operation.context, operation.request, operation.origin = context, request, request
        operation.targeted, operation.retries = (), 0
        operation.table, operation.awaited_routing = None, False
        operation.started, operation.operation_time, operation.opid = perf_counter(), 0, None
        operation.response_to, operation._namespace = request.message.request_id, None
        operation.sender, operation.transaction = context.sender, None
        operation._read_preference = operation.begun_routing = operation.passed_on = None
        operation.begun_session, operation.begun_shares = None, ()
        operation.max_time_ms, operation.epoch = 0, EPOCH.number
        return operation

    def part(self, request: Request) -> "Operation":
        """Create an operation that is a part of this one, in the same transaction."""
        part = Operation(self.context, self.client, request)
        part.origin, part.sender, part.transaction = self.origin, self.sender, self.transaction
        return part

    def note_part(self, part: "Operation") -> None:
        """Copy routing and targets from a part that has ended, for the log."""
        self.targeted, self.table = part.targeted, part.table
        self.retries += part.retries
        self.awaited_routing = self.awaited_routing or part.awaited_routing

    def enter(self, transaction: RouterTransaction) -> None:
        """Run in a transaction from now on."""
        self.transaction = transaction
        self.sender = TransactionSender(self.sender, transaction)

    def begin_again(self, stale: CommandError) -> None:
        """Count a restart after a shard has refused the routing versions.

        Raises:
            CommandError: the same error, if the operation is part of a transaction and cannot restart in it.
        """
        self.retries += 1
        if self.transaction is not None and not self.transaction.restart():
            raise stale

    def routing_of(self, namespace: str) -> CollectionRouting | None:
        """Return the cached routing of its collection, or the one that it was already sent by; None for neither."""
        if self.begun_routing is not None:
            routing, self.begun_routing = self.begun_routing, None
            return routing
        return self.context.routing.collections.get(namespace)

    @property
    def namespace(self) -> str:
        """The full name of the collection in the command's first field."""
        if self._namespace is None:
            request = self.request
            namespace = f"{request.db}.{request.collection}"
            if namespace not in self.context.routing.collections:
                Namespace(request.db, request.collection).check_valid()
            self._namespace = namespace
        return self._namespace

    @property
    def read_preference(self) -> ReadPreference:
        """The ``$readPreference`` of the request."""
        if self._read_preference is None:
            request = self.request
            span = request.fields.get(READ_PREFERENCE)
            if span is None:
                self._read_preference = PRIMARY
            else:
                parse = _parsed_before if span[3] - span[1] <= _READ_PREFERENCE_BYTES_KEPT else _parsed
                self._read_preference = parse(request.body[span[1] : span[3]])
        return self._read_preference

    @property
    def acting_user(self) -> UserName | None:
        """The authenticated user of the operation's connection; None without access control."""
        return None if self.context.access is None else self.client.login.user

    @property
    def user(self) -> bytes:
        """The digest of the acting user, empty if there is none."""
        user = self.acting_user
        return b"" if user is None else user.digest

    @property
    def user_name(self) -> str:
        """The full name of the acting user, empty if there is none."""
        user = self.acting_user
        return "" if user is None else user.full_name

    @property
    def is_retryable_write(self) -> bool:
        """Whether the request is a write that shards recognize when it is resent."""
        return TXN_NUMBER in self.request.fields and AUTOCOMMIT not in self.request.fields

    def argument(self, name: bytes, default: Any = None) -> Any:  # noqa: ANN401 - a BSON value can be anything
        """Return the decoded value of one argument of the command."""
        return self.request.get(name, default)

    def gossip(self) -> dict[str, Any]:
        """Return the last fields of the router's own replies."""
        return reply_builder.gossip(self.context.clock, self.operation_time)

    def framed(self, document: dict[str, Any]) -> bytes:
        """Build the frame of a reply of the router itself, failed or not; add the gossiped times to the document."""
        document.setdefault("ok", 1.0)
        document.update(self.gossip())
        return signed(reply(self.response_to, bson.encode(document)), self.context.signer)

    def raw_reply(self, *elements: bytes) -> bytes:
        """Build the frame of a successful reply from the raw elements before ``ok``, or pieces of them."""
        return reply_builder.raw_reply(
            self.request.message.request_id, elements, self.context.clock, self.operation_time
        )


def _parsed(element: bytes) -> ReadPreference:
    """Parse the read preference in the raw element of a request."""
    return ReadPreference.parse(decode_document(from_elements(element))[READ_PREFERENCE.decode()])


_parsed_before = lru_cache(_READ_PREFERENCES_KEPT)(_parsed)

CommandHandler: TypeAlias = Callable[[Operation], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class RouterCommand(Command[CommandHandler]):
    """One command and its flags, for the dispatcher and ``listCommands``.

    Attributes:
        reads: it only reads: it may be cancelled when its client leaves, and be sent again after a broken connection.
        writes: it changes documents; the shards check its write concern.
        supports_write_concern: it may have a ``writeConcern``.
        deadline_from_max_time: whether ``maxTimeMS`` bounds it (in ``getMore`` and ``hello`` it means something else).
        api_versions: the versions of the Stable API that include it.
        deprecated_api_versions: the versions among them in which it is deprecated.
        begins_in_reactor: the handler usually waits for shards alone, and calls `in_own_task` where it does not.
        test_only: it exists only if test commands are enabled.
    """

    _: KW_ONLY
    reads: bool = False
    writes: bool = False
    supports_write_concern: bool = False
    deadline_from_max_time: bool = True
    api_versions: tuple[str, ...] = ()
    deprecated_api_versions: tuple[str, ...] = ()
    begins_in_reactor: bool = False
    test_only: bool = False
