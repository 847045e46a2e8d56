"""``$lookup`` of a collection elsewhere: the router reads what may match, and a mongod joins.

What is read depends on the arguments:

* an equality of fields: the documents that have one of the values in a batch, by ``$in``. Each document is handed to
  the mongod with those that may match it; the mongod compares the fields and runs the nested pipeline.
* a pipeline that uses variables of ``let``: its result for each different set of values, which are computed first.
* any other pipeline: its result, once.
"""

from collections.abc import Iterable, Iterator, Sequence

from shardwright.router.joins.candidates import Candidates
from shardwright.router.joins.concurrent_reads import read_each
from shardwright.router.joins.environment import COLLECTIONLESS, MEMORY_BYTES_MAX, JoinEnvironment
from shardwright.router.joins.field_values import WantedValues, has_plain_value
from shardwright.router.joins.handed_documents import Handed, joining_pipelines
from shardwright.router.joins.lookup import Lookup
from shardwright.router.joins.stage_building import raw_stage
from shardwright.router.joins.variables import LetVariables
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import spans


class LookupStep:
    """See `batched_stream.Step`."""

    def __init__(self, environment: JoinEnvironment, lookup: Lookup, tail: Sequence[bytes]) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            lookup: what to do.
            tail: raw stages on single documents that follow.

        Raises:
            CommandError: CommandNotSupported, it compares fields and its pipeline names further collections.
        """
        if lookup.equality is not None and (lookup.names_others or lookup.collection is None):
            raise CommandError(
                ErrorCode.CommandNotSupported,
                "$lookup with 'localField' and a pipeline that names further collections is not supported unless all "
                "collections are unsharded and on the same shard",
            )
        self._environment = environment
        self._lookup = lookup
        self._tail = tuple(tail)
        self._collection = COLLECTIONLESS if lookup.collection is None else lookup.collection
        self._variables = LetVariables(environment, lookup.variables if lookup.is_correlated else {})
        self._result: list[bytes] | None = None

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `batched_stream.Step`."""
        if self._lookup.equality is not None:
            return await self._by_equality(documents, *self._lookup.equality)
        if self._lookup.is_correlated:
            return await self._by_variables(documents)
        return await self._by_one_result(documents)

    async def _by_equality(self, documents: Sequence[bytes], local: str, foreign: str) -> Iterator[list[bytes]]:
        local_path, foreign_path = local.encode().split(b"."), foreign.encode().split(b".")
        wanted = WantedValues(local_path)
        for document in documents:
            wanted.add(document)
        matching = await self._matching(wanted.filter(foreign.encode())) if documents else []
        candidates = Candidates(matching, foreign_path, is_collated=self._environment.is_collated)
        values = await self._variables.of(documents)
        handed = (
            Handed(document, candidates.of(document, local_path), variables)
            for document, variables in zip(documents, values, strict=True)
        )
        is_exact = (
            bool(documents)  # else the stage is only checked
            and not (self._environment.is_collated or self._lookup.stages or len(foreign_path) > 1)
            and all(has_plain_value(document, local_path) for document in documents)
        )
        specification = {"localField": f"d.{local}", "foreignField": foreign}
        let = self._variables.handed_as("v")
        return joining_pipelines(
            handed,
            self._lookup.into,
            self._tail,
            let=let,
            fields=specification,
            stages=self._lookup.stages,
            is_exact=is_exact,
        )

    async def _matching(self, query: bytes) -> list[bytes]:
        """The documents of the other collection that may match one of a batch.

        Raises:
            CommandError: they could not be read, or need too much memory.
        """
        stages = [raw_stage(b"$match", query), *self._leading_matches()]
        return await self._environment.collect(await self._environment.read(self._collection, stages), MEMORY_BYTES_MAX)

    def _leading_matches(self) -> Iterator[bytes]:
        """The first stages of the pipeline if they only leave out documents, whatever these are joined with."""
        for raw in self._lookup.stages:
            name = next(spans(raw))[0]
            if name != b"$match" or any(b"$$" + variable in raw for variable in self._lookup.variables):
                return
            yield raw

    async def _by_variables(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        values = await self._variables.of(documents)
        results = await self._results(dict.fromkeys(values))
        handed = (Handed(document, results[variables]) for document, variables in zip(documents, values, strict=True))
        return joining_pipelines(handed, self._lookup.into, self._tail, is_exact=bool(documents))

    async def _results(self, different: Iterable[bytes]) -> dict[bytes, list[bytes]]:
        """The results of the nested pipeline for several sets of values.

        Raises:
            CommandError: it failed, or they need too much memory.
        """
        room = MEMORY_BYTES_MAX

        async def read(values: bytes) -> list[bytes]:
            nonlocal room
            result = await self._read_result(self._variables.as_let(values), room)
            room -= sum(map(len, result))
            return result

        return await read_each(different, read)

    async def _read_result(self, variables: dict[bytes, bytes], bytes_max: int) -> list[bytes]:
        stream = await self._environment.read(self._collection, self._lookup.stages, variables)
        return await self._environment.collect(stream, bytes_max)

    async def _by_one_result(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        if self._result is None and documents:
            self._result = await self._read_result({}, MEMORY_BYTES_MAX)
        handed = (Handed(document) for document in documents)
        return joining_pipelines(handed, self._lookup.into, self._tail, for_all=self._result or ())
