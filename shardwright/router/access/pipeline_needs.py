"""Privileges that pipelines require. The first stage determines the actions on the collection itself. Pure.

Unknown stages are refused, so that a stage that reads other collections cannot be overlooked. mongos, too, refuses
unknown stages before it authorizes.

All fields of a pipeline's documents count, including repeated names. MongoDB runs each pipeline of a ``$facet``, even
under a repeated name. A ``$lookup`` that names two collections crashes a mongod.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from shardwright.daemon.users import ANY, CLUSTER, Resource
from shardwright.router.access.needs import LISTS_OF_SESSIONS, Need, Needs, names_others, shows_own_alone
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, duplicate_field
from shardwright.wire.rawbson import WholeDocument, decode_whole, is_string, type_name_of
from shardwright.wire.request import Request

OF_COLLECTION: Final[Mapping[str, tuple[str, ...]]] = {
    "$collStats": ("collStats",),
    "$indexStats": ("indexStats",),
    "$planCacheStats": ("planCacheRead",),
    "$listCatalog": ("listCollections", "listIndexes"),
}
"""First stages that read no documents, and the actions that they require on the collection instead of ``find``."""

WITHOUT_NAMES: Final = frozenset(
    {
        *("$addFields", "$bucket", "$bucketAuto", "$count", "$densify", "$fill", "$geoNear", "$group", "$limit"),
        *("$match", "$project", "$redact", "$replaceRoot", "$replaceWith", "$sample", "$set"),
        *("$setWindowFields", "$skip", "$sort", "$sortByCount", "$unset", "$unwind"),
    }
)
"""Stages that name no other collection."""

WITHOUT_USER: Final = {
    **dict.fromkeys(LISTS_OF_SESSIONS, Need("listSessions", CLUSTER)),
    "$currentOp": Need("inprog", CLUSTER),
}
"""Needs of stages at the start of a joined pipeline, where shards do not receive the name of the user."""

SOURCES: Final = frozenset(
    {
        *OF_COLLECTION,
        *LISTS_OF_SESSIONS,
        *("$changeStream", "$currentOp", "$documents", "$queryStats", "$shardedDataDistribution"),
    }
)
"""Stages that can only come first. Elsewhere the command fails, after the same privileges have been checked."""

FOR_CLUSTER_ALONE: Final = frozenset(
    {
        *("$_addReshardingResumeId", "$_unpackBucket", "$listCachedAndActiveUsers", "$mergeCursors"),
        *("$operationMetrics", "$queue", "$setVariableFromSubPipeline"),
    }
)
"""Stages that MongoDB knows and no user may send, in addition to the ``$_internal`` ones."""


_UNKNOWN_STAGE: Final = 40324
_INTERNAL: Final = "$_internal"
_MERGED_GROUP: Final = "$doingMerge"
_WRITES: Final = frozenset({"insert", "remove", "update"})


def aggregate_needs(request: Request) -> Needs:
    """Return the row of ``aggregate``."""
    pipeline = whole_pipeline(request)
    collection = next(iter(request.fields))
    name = request.get(collection)
    needs = pipeline_needs(request.db, name if is_string(name) else None, pipeline)
    if bypasses_validation(request):
        written = dict.fromkeys(each.resource for each in needs if isinstance(each, Need) and each.action in _WRITES)
        needs += [Need("bypassDocumentValidation", target) for target in written]
    return needs


def bypasses_validation(request: Request) -> bool:
    """Whether validation is bypassed. A value that is neither a boolean nor a number counts as true."""
    value = request.get(b"bypassDocumentValidation")
    return value is not None and value != 0


def named_database(given: object, default: str) -> str:
    """Return the database that a field of a document names.

    Args:
        given: the value of the field, None if it is absent or null.

    Raises:
        CommandError: Unauthorized, the value is not a string, so the database is uncertain.
    """
    if given is None:
        return default
    if not is_string(given):
        raise _not_authorized()
    return given


def whole_pipeline(request: Request) -> Any:  # noqa: ANN401 - whatever a client sent
    """Return the pipeline of a request with all fields, repeated ones included; None if there is none."""
    span = request.fields.get(b"pipeline")
    return None if span is None else decode_whole(request.body, span)


def pipeline_needs(db: str, collection: str | None, given: Any) -> list[Need]:  # noqa: ANN401 - whatever a client sent
    """Return the needs of a pipeline on a collection, or on the database if there is no collection.

    Raises:
        CommandError: Unauthorized, a stage that no user may send; 40324, a stage that MongoDB does not know.
    """
    if any(_is_internal(name) for name in _names(given)):
        raise _not_authorized()
    pipeline = _stages(given)
    return [*_source_needs(db, collection, pipeline), *_stage_needs(db, collection, pipeline)]


def _source_needs(db: str, collection: str | None, pipeline: Sequence[Mapping[str, Any]]) -> Iterator[Need]:
    """Return the needs of the first stage, which may read something else than the collection's documents."""
    first, argument = _split(pipeline[0]) if pipeline else ("", None)
    source = Resource(db, collection)
    if first in SOURCES:
        yield from _needs_of_source(first, argument, source)
    else:
        yield Need("find", source)


def _needs_of_source(name: str, argument: Any, source: Resource) -> Iterator[Need]:  # noqa: ANN401 - as sent
    if name in OF_COLLECTION:
        yield from (Need(action, source) for action in OF_COLLECTION[name])
    elif name == "$changeStream":
        whole = isinstance(argument, Mapping) and argument.get("allChangesForCluster")
        watched = ANY if whole else source
        yield from (Need(action, watched) for action in ("changeStream", "find"))
    elif name == "$documents":
        yield Need("find", Resource(source.db))
    elif name == "$currentOp":
        if not shows_own_alone(argument):
            yield Need("inprog", CLUSTER)
    elif name == "$queryStats":
        yield Need("inprog", CLUSTER)  # the users of MongoDB 6.0 cannot have queryStatsRead
    elif name in LISTS_OF_SESSIONS:
        if names_others(argument):
            yield Need("listSessions", CLUSTER)
    else:
        yield Need("shardedDataDistribution", CLUSTER)


def _stage_needs(db: str, collection: str | None, pipeline: Sequence[Mapping[str, Any]]) -> Iterator[Need]:
    for position, stage in enumerate(pipeline):
        name, argument = _split(stage)
        if name in ("$lookup", "$unionWith", "$graphLookup"):
            yield from _joined_needs(db, name, argument)
        elif name == "$facet":
            for _, inner in argument.pairs() if isinstance(argument, WholeDocument) else ():
                yield from _stage_needs(db, collection, _stages(inner))
        elif name in ("$out", "$merge"):
            yield from _target_needs(db, name, argument)
        elif name in SOURCES:
            if position and name != "$documents":
                yield from _needs_of_source(name, argument, Resource(db, collection))
        elif name in FOR_CLUSTER_ALONE:
            raise _not_authorized()
        elif name not in WITHOUT_NAMES:
            raise CommandError(_UNKNOWN_STAGE, f"Unrecognized pipeline stage name: '{name}'")


def _joined_needs(db: str, name: str, argument: Any) -> Iterator[Need]:  # noqa: ANN401 - whatever a client sent
    key = "coll" if name == "$unionWith" else "from"
    if is_string(argument):
        argument = {key: argument}
    if not isinstance(argument, Mapping):
        return
    _refuse_repeated(name, argument)
    source, inner = argument.get(key), _stages(argument.get("pipeline"))
    if isinstance(source, Mapping):
        _refuse_repeated(f"{name}.{key}", source)
        db, source = named_database(source.get("db"), db), source.get("coll")
    if inner and (reserved := WITHOUT_USER.get(_split(inner[0])[0])) is not None:
        yield reserved
    joined = source if is_string(source) else None
    yield from _source_needs(db, joined, inner)
    yield from _stage_needs(db, joined, inner)


def _target_needs(db: str, name: str, argument: Any) -> Iterator[Need]:  # noqa: ANN401 - whatever a client sent
    into = argument
    if name == "$merge" and isinstance(argument, Mapping):
        _refuse_repeated(name, argument)
        into = argument.get("into")
    if isinstance(into, Mapping):
        if name == "$out":
            _refuse_unless_named(into)
        _refuse_repeated("into", into)
        target = Resource(_target_database(into.get("db"), db), str(into.get("coll", "")))
    else:
        target = Resource(db, str(into))
    actions = ["insert", "remove"] if name == "$out" else ["insert", "update"]
    if name == "$merge" and isinstance(argument, Mapping):
        if argument.get("whenMatched") == "fail":
            actions.remove("update")
        list(_stage_needs(db, None, _stages(argument.get("whenMatched"))))  # refuses stages; allowed ones need nothing
        if argument.get("whenNotMatched") == "discard":
            actions.remove("insert")
    yield from (Need(action, target) for action in actions)


def _target_database(given: object, default: str) -> str:
    """Return the database of a ``$merge`` or ``$out`` target.

    Raises:
        CommandError: TypeMismatch, which a mongod, too, raises before it authorizes.
    """
    if given is not None and not is_string(given):
        text = f"BSON field 'into.db' is the wrong type '{type_name_of(given)}', expected type 'string'"
        raise CommandError(ErrorCode.TypeMismatch, text)
    return default if given is None else given


def _refuse_unless_named(out: Mapping[str, Any]) -> None:
    """Refuse an ``$out`` document that does not name a collection, as a mongod does before it authorizes."""
    if len(out) != 2 or not {"db", "coll"} <= out.keys() or (isinstance(out, WholeDocument) and out.repeated):
        raise CommandError(16994, "If an object is passed to $out it must have exactly 2 fields: 'db' and 'coll'")
    for name in ("coll", "db"):
        if not is_string(out[name]):
            raise CommandError(13111, f"wrong type for field ({name}) {type_name_of(out[name])} != string")


def _refuse_repeated(path: str, document: Mapping[str, Any]) -> None:
    """Refuse a document with a repeated field name: the check might use one value and the execution the other."""
    if isinstance(document, WholeDocument) and document.repeated:
        raise duplicate_field(f"{path}.{document.repeated[0][0]}")


def _stages(pipeline: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401 - whatever a client sent
    """Return the stages of a pipeline without malformed ones, which the command itself will refuse."""
    return [stage for stage in pipeline if isinstance(stage, Mapping) and stage] if isinstance(pipeline, list) else []


def _split(stage: Mapping[str, Any]) -> tuple[str, Any]:
    return next(iter(stage.items()))


def _is_internal(name: str) -> bool:
    return name.startswith(_INTERNAL) or name == _MERGED_GROUP


def _names(value: Any) -> Iterator[str]:  # noqa: ANN401 - a BSON value can be anything
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, WholeDocument):
            for name, inner in each.pairs():
                yield name
                pending.append(inner)
        elif isinstance(each, list):
            pending += each


def _not_authorized() -> CommandError:
    return CommandError(ErrorCode.Unauthorized, "not authorized")
