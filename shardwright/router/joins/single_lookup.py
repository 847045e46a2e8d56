"""What a single document is joined with by a ``$lookup``, as a stream: the stages may be any, and the results many."""

from collections.abc import Iterator, Sequence

from shardwright.router.joins.batched_stream import BatchedStream
from shardwright.router.joins.environment import COLLECTIONLESS, JoinEnvironment, StageRunner
from shardwright.router.joins.field_values import WantedValues
from shardwright.router.joins.lookup import Lookup
from shardwright.router.joins.stage_building import documents_stage, raw_stage, stage
from shardwright.router.joins.streams import DocumentStream
from shardwright.router.joins.variables import LetVariables
from shardwright.wire.rawbson import ARRAY, OBJECT, array_of_documents, element, find, from_elements


class SingleLookup:
    """A ``$lookup`` of one document after another."""

    def __init__(
        self, environment: JoinEnvironment, lookup: Lookup, variables: LetVariables, run_stages: StageRunner
    ) -> None:
        """Prepare it.

        Args:
            environment: of the aggregation.
            lookup: what to do.
            variables: of the nested pipeline.
            run_stages: runs the nested pipeline on the documents that match.
        """
        self._environment = environment
        self._lookup = lookup
        self._variables = variables
        self._run_stages = run_stages

    async def results_of(self, document: bytes) -> DocumentStream:
        """What a document is joined with.

        Raises:
            CommandError: it could not be read.
        """
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
        equal = BatchedStream(self._environment, candidates, _ComparingStep(document, local, foreign))
        return await self._run_stages(self._environment.with_variables(variables), equal, nested)


class _ComparingStep:
    """See `batched_stream.Step`: leaves out the documents that do not match one, as a mongod compares."""

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
        """See `batched_stream.Step`."""
        if not documents:
            return iter(())  # the stage was checked before the document was read
        row = from_elements(self._compared + element(b"m", ARRAY, array_of_documents(list(documents))))
        return iter([[documents_stage([row]), *self._stages]])
