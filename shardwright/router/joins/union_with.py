"""The arguments of ``$unionWith``, which a mongod has checked (`operations.checked_pipeline`)."""

from dataclasses import dataclass

from shardwright.router.joins.lookup import begins_with_documents, string_at
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import STRING, array_documents, index


@dataclass(frozen=True, slots=True)
class UnionWith:
    """What a ``$unionWith`` is to add.

    Attributes:
        collection: the other collection; None if the pipeline begins with ``$documents``, whatever is named beside it.
        stages: the raw stages of the pipeline.
    """

    collection: str | None
    stages: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, stage: Stage) -> "UnionWith":
        """Read the stage, which is right."""
        if stage.span[0] == STRING:
            return cls(str(stage.specification))
        fields = index(stage.raw, stage.span[2])
        collection, pipeline = fields.get(b"coll"), fields.get(b"pipeline")
        stages = () if pipeline is None else tuple(array_documents(stage.raw, pipeline))
        if collection is None or begins_with_documents(stages):
            return cls(None, stages)
        return cls(string_at(stage.raw, collection), stages)
