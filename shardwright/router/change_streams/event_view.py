"""Events as the client sees them: completed by the router, then changed by the client's own stages."""

from collections.abc import Iterator, Sequence

from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS, operation_type
from shardwright.router.change_streams.client_stages import ClientStages, token_of
from shardwright.router.change_streams.commands import Commands, look_up_each
from shardwright.router.change_streams.errors import id_modified
from shardwright.router.change_streams.images import Images, without_internal_fields
from shardwright.router.change_streams.key_completion import KeyCompletion
from shardwright.router.change_streams.merger import Event
from shardwright.router.change_streams.orphan_deletions import OrphanDeletions
from shardwright.router.change_streams.sharding_events import ShardingEvents
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.wire.document_size import check_size
from shardwright.wire.rawbson import find

Shown = tuple[ResumeToken, bytes]
"""The token of an event, and the raw document that the client gets."""


class EventView:
    """Makes of merged events what one stream's client gets.

    Args:
        images: adds versions of documents, None if the stream asks for none.
        stages: the client's stages.
        commands: evaluates them.
        keys: completes ``documentKey``.
        sharding: recognizes when collections were sharded, None if the stream does not show it.
        orphans: leaves out deletions of orphans.
    """

    def __init__(
        self,
        images: Images | None,
        stages: ClientStages,
        commands: Commands,
        keys: KeyCompletion,
        sharding: ShardingEvents | None,
        orphans: OrphanDeletions,
    ) -> None:
        self._images = images
        self._stages = stages
        self._commands = commands
        self._keys = keys
        self._sharding = sharding
        self._orphans = orphans

    async def of(self, events: Sequence[Event]) -> list[Shown]:
        """What the client gets of events; fewer if its stages reject some.

        Raises:
            CommandError: BSONObjectTooLarge, an event is too large; ChangeStreamFatalError, its stages changed an
                ``_id``; a look-up or an expression failed; the config servers did not answer.
        """
        events = await self._orphans.left_out(events)
        if not events:
            return []
        if self._sharding is not None:
            events = [await self._sharding.shown(event) for event in events]
        completed = await self._completed(events)
        if not self._must_be_evaluated(events):
            for document in completed:
                check_size(len(document))
            return [(event.token, document) for event, document in zip(events, completed, strict=True)]
        tokens = iter(event.token for event in events)
        results = await self._commands.evaluate(completed, self._stages.raw)
        return [(_token(tokens, events[0].token, result), result) for result in results]

    def _must_be_evaluated(self, events: Sequence[Event]) -> bool:
        if not self._stages.run_on_shards:
            return bool(self._stages.raw)
        # These come from the shards whatever the client's stages make of them.
        return bool(self._stages.raw) and any(operation_type(event.document) in CATALOG_EVENTS for event in events)

    async def _completed(self, events: Sequence[Event]) -> list[bytes]:
        if self._images is None:
            documents = [without_internal_fields(event.document) for event in events]
        else:
            documents = await look_up_each(events, self._images.added_to)
        return await self._keys.completed(events, documents)


def _token(tokens: Iterator[ResumeToken], first: ResumeToken, result: bytes) -> ResumeToken:
    """The token of the event that a result was made of.

    Raises:
        CommandError: ChangeStreamFatalError, its ``_id`` is not the token of any event that is left.
    """
    raw = token_of(result)
    for token in tokens:
        if token.raw == raw:
            return token
    left = find(result, b"_id")
    raise id_modified(first, b"" if left is None else result[left[1] : left[3]])
