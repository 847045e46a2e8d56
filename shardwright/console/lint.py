"""``shardwright lint``: the predicted shards of captured operations, and the shapes that scatter, worst first.

Each line of the input may contain an operation: a command in Extended JSON, a line as typed into mongosh, or a slow
operation in the log of a mongod or router. A router's line has no values, only the shape of the operation and the
contacted shards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.console.any_value import value_of
from shardwright.console.explaining import advice, predicate, reasons
from shardwright.console.placements import Tables
from shardwright.console.prediction import NotPredictable, Prediction, Rule, Where, predict, request_of
from shardwright.console.reader import Document, Reader
from shardwright.console.shell_syntax import SyntaxFault, parsed, shell_text
from shardwright.daemon.query_shape import query_hash, query_shape
from shardwright.wire.rawbson import decode_document

_SLOW_ID: Final = 51803
_OWN_SLOW: Final = "Slow operation"
_OF_LOG_TYPE: Final = {"update": ("update", "updates"), "remove": ("delete", "deletes")}

_SHOWN_MAX: Final = 20
_UNUSED_SHOWN_MAX: Final = 3
_WIDTH: Final = 110
_FILTERS: Final = ("filter", "query", "q")


@dataclass(frozen=True, slots=True)
class Captured:
    """One operation.

    Attributes:
        line: number of its line, from 1.
        command: the command; empty if only the shape is known.
        shape: the command without values; None if the command is known.
        shards: the contacted shards, if the line has them.
    """

    line: int
    db: str
    command: Mapping[str, Any]
    collection: str
    shape: Mapping[str, Any] | None = None
    shards: Sequence[str] | None = None


class Unusable(ValueError):
    """The line has no operation; the message is the reason."""


def captured(text: str, line: int, default_db: str) -> Captured:
    """Parse the operation of one line.

    Args:
        default_db: the database of a command that names none.

    Raises:
        Unusable: there is none.
    """
    text = text.strip()
    if not text:
        raise Unusable("an empty line")
    if not text.startswith("{"):
        return _of_shell(text, line, default_db)
    try:
        document = value_of(text)
    except ValueError:
        return _of_shell(text, line, default_db)
    if not isinstance(document, dict):
        raise Unusable("not a document")
    attributes = document.get("attr")
    if isinstance(attributes, dict):
        if document.get("id") != _SLOW_ID:
            raise Unusable("a log line about something else")
        return _of_log(attributes, line)
    if document.get("msg") == _OWN_SLOW:
        return _of_router(document, line)
    if "component" in document and "msg" in document:
        raise Unusable("a log line about something else")
    command = document.get("command")
    if isinstance(command, dict):
        namespace = str(document.get("ns", ""))
        db = document.get("databaseName") or document.get("db") or namespace.partition(".")[0] or default_db
        return _of_command(_whole(command, str(document.get("op", "")), namespace), line, str(db))
    return _of_command(document, line, default_db)


def _of_shell(text: str, line: int, default_db: str) -> Captured:
    try:
        found = parsed(text, default_db)
    except SyntaxFault as fault:
        raise Unusable(str(fault)) from fault
    return _of_command(found.command, line, found.db)


def _of_log(attributes: Mapping[str, Any], line: int) -> Captured:
    command, namespace = attributes.get("command"), str(attributes.get("ns", ""))
    if not isinstance(command, dict):
        return _of_router({**attributes, "namespace": namespace, "shape": attributes.get("queryShape")}, line)
    if "$truncated" in command:
        raise Unusable("the server has shortened the command")
    return _of_command(_whole(command, str(attributes.get("type", "")), namespace), line, namespace.partition(".")[0])


def _whole(command: dict[str, Any], kind: str, namespace: str) -> dict[str, Any]:
    """Return a whole command; for updates and deletes servers log single statements instead."""
    named = _OF_LOG_TYPE.get(kind)
    if named is None or "q" not in command:
        return command
    name, statements = named
    fields = {field: value for field, value in command.items() if field in ("q", "u", "multi", "upsert", "collation")}
    if name == "delete":
        fields["limit"] = command.get("limit", 0)
    return {name: namespace.partition(".")[2], statements: [fields]}


def _of_router(line_fields: Mapping[str, Any], line: int) -> Captured:
    namespace, shape, shards = line_fields.get("namespace"), line_fields.get("shape"), line_fields.get("shards")
    if not isinstance(shape, dict) or not shape or not isinstance(shards, list):
        raise Unusable("the line has neither a command nor a shape")
    db, _, collection = str(namespace).partition(".")
    return Captured(line, db, {}, collection, shape, [str(each) for each in shards])


def _of_command(command: Mapping[str, Any], line: int, default_db: str) -> Captured:
    collection = next(iter(command.values()), None)
    if not isinstance(collection, str):
        raise Unusable("not a command on a collection")
    return Captured(line, str(command.get("$db", default_db)), command, collection)


@dataclass(slots=True)
class Shape:
    """Operations that differ in values only.

    Attributes:
        text: the shape, for people.
        line: number of the first line with it.
        scattered: number of operations that go to several shards.
        refused: number of operations that a router refuses.
        shards: the largest number of shards that an operation contacts.
        is_recorded: whether the shards were read from a router's log, not predicted.
        reason: why it goes to several shards, or is refused.
        advice: a change that would target it.
    """

    namespace: str
    command: str
    text: str
    line: int
    count: int = 0
    scattered: int = 0
    refused: int = 0
    shards: int = 0
    is_recorded: bool = False
    reason: str = ""
    advice: str = ""


@dataclass(slots=True)
class Report:
    """The result for one file.

    Attributes:
        shapes: scattered or refused ones first, the most frequent ones before others.
        unused: reasons why lines were left out, with their numbers of lines.
    """

    shapes: list[Shape] = field(default_factory=list)
    unused: dict[str, int] = field(default_factory=dict)

    @property
    def operations(self) -> int:
        """Number of operations."""
        return sum(shape.count for shape in self.shapes)

    @property
    def scattered(self) -> int:
        """Number of operations that several shards receive."""
        return sum(shape.scattered for shape in self.shapes)

    @property
    def refused(self) -> int:
        """Number of operations that a router refuses."""
        return sum(shape.refused for shape in self.shapes)

    @property
    def scatter_share(self) -> float:
        """Share of scattered operations among all, from 0 to 1."""
        return self.scattered / self.operations if self.operations else 0.0

    def is_within(self, scatter_max: float | None) -> bool:
        """Whether the scatter share is at most a budget, and no operation is refused; True without a budget."""
        return scatter_max is None or (self.scatter_share <= scatter_max and not self.refused)

    def document(self, scatter_max: float | None) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "operations": self.operations,
            "scattered": self.scattered,
            "refused": self.refused,
            "scatterShare": round(self.scatter_share, 6),
            "scatterMax": scatter_max,
            "isWithinBudget": self.is_within(scatter_max),
            "unused": self.unused,
            "shapes": [
                {
                    "ns": each.namespace,
                    "command": each.command,
                    "shape": each.text,
                    "line": each.line,
                    "count": each.count,
                    "scattered": each.scattered,
                    "refused": each.refused,
                    "shards": each.shards,
                    "isRecorded": each.is_recorded,
                    "reason": each.reason,
                    "advice": each.advice,
                }
                for each in self.shapes
            ],
        }

    def text(self, scatter_max: float | None) -> str:
        """Format the report for people."""
        lines = [
            f"{self.operations:,} operations of {len(self.shapes):,} shapes: {self.scattered:,} scattered "
            f"({self.scatter_share:.1%}), {self.refused:,} refused"
        ]
        worst = [shape for shape in self.shapes if shape.scattered or shape.refused]
        for shape in worst[:_SHOWN_MAX]:
            share = (shape.scattered + shape.refused) / self.operations
            fate = f"to {shape.shards} shards" if shape.scattered else "refused"
            lines.append(f"\n{share:6.1%}  {shape.scattered + shape.refused:,} on {shape.namespace}, {fate}")
            lines.append(f"        line {shape.line}: {_shortened(shape.text)}")
            lines += [f"        {text}" for text in (shape.reason, shape.advice) if text]
        if len(worst) > _SHOWN_MAX:
            lines.append(f"\nand {len(worst) - _SHOWN_MAX:,} more shapes; --json has all")
        if self.unused:
            shown = sorted(self.unused.items(), key=lambda each: -each[1])
            named = "; ".join(f"{count:,} {reason}" for reason, count in shown[:_UNUSED_SHOWN_MAX])
            lines.append(f"\n{sum(self.unused.values()):,} lines left out: {named}")
        if scatter_max is not None:
            kept = "within" if self.is_within(scatter_max) else "over"
            lines.append(f"\n{kept} the budget of {scatter_max:.1%}")
        return "\n".join(lines)


async def lint(reader: Reader, lines: Iterable[str], default_db: str) -> Report:
    """Predict the shards of each operation.

    Args:
        default_db: the database of commands that name none.
    """
    report, tables = Report(), Tables(reader)
    found: dict[tuple[str, str, str], Shape] = {}
    for number, line in enumerate(lines, 1):
        try:
            operation = captured(line, number, default_db)
            await _add(found, operation, tables)
        except (Unusable, NotPredictable) as error:
            reason = str(error)
            report.unused[reason] = report.unused.get(reason, 0) + 1
    report.shapes = sorted(found.values(), key=lambda each: (-each.scattered - each.refused, -each.count, each.line))
    return report


async def _add(found: dict[tuple[str, str, str], Shape], operation: Captured, tables: Tables) -> None:
    where = await tables.where(operation.db, operation.collection)
    namespace = f"{operation.db}.{operation.collection}"
    if operation.shape is not None:
        shape, name, contacted, refusal = operation.shape, next(iter(operation.shape)), operation.shards or (), ""
        filter_: Mapping[str, Any] = next((shape[each] for each in _FILTERS if isinstance(shape.get(each), dict)), {})
        prediction = None
    else:
        request = request_of(operation.command, operation.db)
        prediction = predict(request, where)
        shape, name, contacted = query_shape(request), request.name, prediction.shards
        refusal = "" if prediction.refusal is None else prediction.refusal.message
        filter_ = {} if prediction.filter is None else decode_document(prediction.filter)
    each = found.setdefault(
        (namespace, name, query_hash(shape)),
        Shape(namespace, name, _text(operation.collection, shape), operation.line, is_recorded=prediction is None),
    )
    each.count += 1
    each.refused += bool(refusal)
    each.scattered += len(contacted) > 1 and not refusal
    each.shards = max(each.shards, len(contacted))
    if each.reason or (len(contacted) < 2 and not refusal):
        return
    entry = tables.entries[operation.db, operation.collection]
    predicates = [] if entry is None else [predicate(path, kind, filter_) for path, kind in entry["key"].items()]
    each.reason = f"The router refuses it: {refusal}" if refusal else _reason(prediction, predicates, contacted, where)
    if predicates and not refusal and (prediction is None or prediction.parts[0].rule is not Rule.DOCUMENT):
        each.advice = next(iter(advice(predicates, contacted)), "")


def _reason(
    prediction: Prediction | None, predicates: Sequence[Document], contacted: Sequence[str], where: Where
) -> str:
    rule = None if prediction is None else prediction.parts[0].rule
    if rule is Rule.DOCUMENT:
        return "Its documents belong to several shards."
    if rule is Rule.DESCRIBES:
        return "Each shard of the collection describes itself."
    if not predicates or where.placement is None:
        return ""
    return next(iter(reasons(predicates, None, 0, contacted, sorted(where.cluster))), "")


def _text(collection: str, shape: Mapping[str, Any]) -> str:
    name, *arguments = shape
    return shell_text({name: collection, **{each: shape[each] for each in arguments}})


def _shortened(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
