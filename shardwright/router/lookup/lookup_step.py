"""``$lookup`` of a collection elsewhere: the router reads possible matches, and a mongod joins.

The reads depend on the arguments:

* With an equality of fields, the router reads the documents that have one of the values of a batch, by ``$in``. The
  mongod receives each document with its possible matches, compares the fields, and runs the nested pipeline.
* With an equality and a nested pipeline that no mongod can run alone, the router reads the matches of each document.
  It runs the nested pipeline on them.
* With a pipeline that uses variables of ``let``, the router reads its result for each distinct set of values, which are
  computed first.
* With any other pipeline, the router reads its result once.

`SingleLookup` returns the matches of a single document as a stream, with any stages and any number of results.
"""

from collections.abc import Iterable, Iterator, Sequence

from shardwright.router.exec.stage import ListStage, Stage
from shardwright.router.lookup.environment import COLLECTIONLESS, JoinEnvironment, StageRunner, read_each
from shardwright.router.lookup.lookup import Candidates, LetVariables, Lookup, WantedValues, has_plain_value
from shardwright.router.lookup.mongod_stages import BatchedStage, joined_alone
from shardwright.router.lookup.pipeline_input import (
    BATCH_MATCHES_BYTES_MAX,
    MEMORY_BYTES_MAX,
    Handed,
    Room,
    TooLargeError,
    check_handed,
    documents_stage,
    joining_pipelines,
    raw_stage,
    stage,
)
from shardwright.wire.rawbson import ARRAY, OBJECT, array_of_documents, element, find, from_elements


class SingleLookup:
    """A ``$lookup`` for single documents."""

    def __init__(
        self, environment: JoinEnvironment, lookup: Lookup, variables: LetVariables, run_stages: StageRunner
    ) -> None:
        """Prepare the lookup."""
        self._environment = environment
        self._lookup = lookup
        self._variables = variables
        self._run_stages = run_stages

    async def results_of(self, document: bytes) -> Stage:
        """Read the documents to join a document with."""
        lookup = self._lookup
        [values] = await self._variables.of([document])
        variables = self._variables.as_let(values)
        if lookup.equality is None:
            return await self._environment.read(lookup.collection or COLLECTIONLESS, lookup.stages, variables)
        local, foreign = lookup.equality
        if lookup.collection is None:
            candidates = await self._environment.read(COLLECTIONLESS, lookup.stages[:1], variables)
            nested: Sequence[bytes] = lookup.stages[1:]
        else:
            wanted = WantedValues(local.encode().split(b"."))
            wanted.add(document)
            matching = raw_stage(b"$match", wanted.filter(foreign.encode()))
            candidates = await self._environment.read(lookup.collection, [matching, *lookup.leading_matches])
            nested = lookup.stages
        equal = BatchedStage(self._environment, candidates, _ComparingStep(document, local, foreign))
        return await self._run_stages(self._environment.with_variables(variables), equal, nested)


class _ComparingStep:
    """A `mongod_stages.Step` that keeps the documents that match one document by a mongod's comparison."""

    def __init__(self, document: bytes, local: str, foreign: str) -> None:
        name = local.encode().split(b".")[0]
        span = find(document, name)
        compared = b"" if span is None else document[span[1] : span[3]]
        self._compared = element(b"d", OBJECT, from_elements(compared))
        self._stages = [
            stage(
                "$lookup",
                {
                    "localField": f"d.{local}",
                    "foreignField": foreign,
                    "let": {"matches": "$m"},
                    "pipeline": [{"$documents": "$$matches"}],
                    "as": "m",
                },
            ),
            stage("$unwind", "$m"),
            stage("$replaceWith", "$m"),
        ]

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `mongod_stages.Step`."""
        if not documents:
            return iter(())  # the whole pipeline was validated before the document was read
        row = from_elements(self._compared + element(b"m", ARRAY, array_of_documents(list(documents))))
        return iter([[documents_stage([row]), *self._stages]])


class LookupStep:
    """A `mongod_stages.Step` for ``$lookup``."""

    def __init__(
        self, environment: JoinEnvironment, lookup: Lookup, tail: Sequence[bytes], run_stages: StageRunner
    ) -> None:
        """Prepare the step.

        Args:
            tail: raw stages on single documents that follow.
        """
        self._environment = environment
        self._lookup = lookup
        self._tail = tuple(tail)
        self._collection = COLLECTIONLESS if lookup.collection is None else lookup.collection
        self._variables = LetVariables(environment, lookup.variables if lookup.is_correlated else {})
        self._single = SingleLookup(environment, lookup, self._variables, run_stages)
        self._result: list[bytes] | None = None
        self._is_result_too_large = False

    async def pipelines(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        """See `mongod_stages.Step`."""
        if self._lookup.equality is not None:
            if self._lookup.names_others or self._lookup.collection is None:
                return await self._one_by_one(documents, *self._lookup.equality)
            return await self._by_equality(documents, *self._lookup.equality)
        if self._lookup.is_correlated:
            return await self._by_variables(documents)
        return await self._by_one_result(documents)

    async def run_alone(self, document: bytes) -> Stage:
        """See `mongod_stages.RunAlone`."""
        results = await self._single.results_of(document) if self._result is None else ListStage(self._result)
        return joined_alone(self._environment, document, results, self._lookup.into, self._tail)

    async def _by_equality(self, documents: Sequence[bytes], local: str, foreign: str) -> Iterator[list[bytes]]:
        local_path, foreign_path = local.encode().split(b"."), foreign.encode().split(b".")
        wanted = WantedValues(local_path)
        keys = [wanted.add(document) for document in documents]
        matching = await self._matching(wanted.filter(foreign.encode())) if documents else []
        is_collated = self._environment.is_collated
        candidates = Candidates(matching, foreign_path, is_collated=is_collated)
        values = await self._variables.of(documents)
        handed = [
            Handed(document, candidates.of(document, local_path) if is_collated else candidates.of_keys(key), variables)
            for document, key, variables in zip(documents, keys, values, strict=True)
        ]
        check_handed(handed)
        is_exact = (
            bool(documents)  # without documents, the stage is only validated
            and not (is_collated or self._lookup.stages or len(foreign_path) > 1)
            and all(has_plain_value(document, local_path) for document in documents)
        )
        return joining_pipelines(
            handed,
            self._lookup.into,
            self._tail,
            let=self._variables.handed_as("v"),
            fields=_compared(local, foreign),
            stages=self._lookup.stages,
            is_exact=is_exact,
        )

    async def _matching(self, query: bytes) -> list[bytes]:
        """Read the documents of the other collection that may match any of a batch.

        Raises:
            TooLargeError: they are too large.
        """
        stages = [raw_stage(b"$match", query), *self._lookup.leading_matches]
        stream = await self._environment.read(self._collection, stages)
        return await self._environment.collect(stream, Room(BATCH_MATCHES_BYTES_MAX))

    async def _one_by_one(self, documents: Sequence[bytes], local: str, foreign: str) -> Iterator[list[bytes]]:
        if not documents:
            return joining_pipelines((), self._lookup.into, self._tail, fields=_compared(local, foreign))
        room = Room(BATCH_MATCHES_BYTES_MAX)

        async def read(document: bytes) -> list[bytes]:
            return await self._environment.collect(await self._single.results_of(document), room)

        return self._joined(documents, documents, await read_each(dict.fromkeys(documents), read))

    async def _by_variables(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        values = await self._variables.of(documents)
        room = Room(BATCH_MATCHES_BYTES_MAX)

        async def read(variables: bytes) -> list[bytes]:
            return await self._read_result(self._variables.as_let(variables), room)

        return self._joined(documents, values, await read_each(dict.fromkeys(values), read))

    def _joined(
        self, documents: Sequence[bytes], keys: Iterable[bytes], results: dict[bytes, list[bytes]]
    ) -> Iterator[list[bytes]]:
        handed = [Handed(document, results[key]) for document, key in zip(documents, keys, strict=True)]
        check_handed(handed)
        return joining_pipelines(handed, self._lookup.into, self._tail, is_exact=bool(documents))

    async def _read_result(self, variables: dict[bytes, bytes], room: Room) -> list[bytes]:
        stream = await self._environment.read(self._collection, self._lookup.stages, variables)
        return await self._environment.collect(stream, room)

    async def _by_one_result(self, documents: Sequence[bytes]) -> Iterator[list[bytes]]:
        if documents and self._result is None:
            self._result = await self._one_result()
        check_handed([Handed(max(documents, key=len, default=b""), self._result or ())])
        handed = (Handed(document) for document in documents)
        return joining_pipelines(handed, self._lookup.into, self._tail, for_all=self._result or ())

    async def _one_result(self) -> list[bytes]:
        """Read the result for all documents.

        Raises:
            TooLargeError: now or in an earlier call, the result was too large to keep; it is read for each document.
        """
        if self._is_result_too_large:
            raise TooLargeError(MEMORY_BYTES_MAX)
        try:
            return await self._read_result({}, Room(MEMORY_BYTES_MAX))
        except TooLargeError:
            self._is_result_too_large = True
            raise


def _compared(local: str, foreign: str) -> dict[str, str]:
    return {"localField": f"d.{local}", "foreignField": foreign}
