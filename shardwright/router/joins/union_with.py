"""The arguments of ``$unionWith``."""

from dataclasses import dataclass

from shardwright.router.joins.lookup import begins_with_documents, check_writes_nothing
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import unknown_field
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING, array_documents, decode_value, index

_NOT_IN_UNION = 31441


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
        """Read the stage.

        Raises:
            CommandError: FailedToParse, TypeMismatch, its arguments are wrong; 31441, its pipeline writes.
        """
        if stage.span[0] == STRING:
            return cls(str(stage.specification))
        if stage.span[0] != OBJECT:
            raise CommandError(
                ErrorCode.FailedToParse, "the $unionWith stage specification must be an object or string"
            )
        fields = index(stage.raw, stage.span[2])
        for name in fields:
            if name not in (b"coll", b"pipeline"):
                raise unknown_field(f"$unionWith.{name.decode(errors='replace')}")
        collection, pipeline = fields.get(b"coll"), fields.get(b"pipeline")
        if (collection is not None and collection[0] != STRING) or (pipeline is not None and pipeline[0] != ARRAY):
            raise CommandError(ErrorCode.TypeMismatch, "$unionWith needs a string 'coll' and an array 'pipeline'")
        stages = () if pipeline is None else tuple(array_documents(stage.raw, pipeline))
        check_writes_nothing(stages, "a $unionWith", _NOT_IN_UNION)
        if collection is None or begins_with_documents(stages):
            return cls(None, stages)
        return cls(str(decode_value(stage.raw, collection)), stages)
