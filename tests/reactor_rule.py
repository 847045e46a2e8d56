"""The rule of the reactor, read off the syntax tree.

A function that is marked `may_run_in_reactor` may await nothing but other marked functions, and open no timeout,
nursery or thread, on any path that has not awaited `in_own_task` before. Calls are resolved in the class and the module
if they name a function there, otherwise by name alone: it is enough if one function of that name is marked.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "may_run_in_reactor"
LEAVES: Final = "in_own_task"

CALLBACKS: Final = frozenset({"attempt", "handler", "make_room", "special", "_begin"})
"""Attributes and parameters that hold marked functions."""

AWAITED: Final = frozenset({"waiting"})
"""Variables that hold what marked functions have returned."""

IN_TASK: Final = "REACTOR.loop is None"
"""A condition under which the code is run by a task."""

WITH_CARE: Final = frozenset({"until_resumed", "wait_in_task"})
"""Functions that may be called only by code that has checked where it runs."""

HARMLESS: Final = frozenset({"Event", "current_time", "Nursery", "ClosedResourceError", "notify_closing"})
"""Parts of trio that code without a task may use."""

Function = ast.AsyncFunctionDef


@dataclass(frozen=True)
class Breach:
    """A place where the rule is broken."""

    where: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.what} before {LEAVES}()"


@dataclass(frozen=True)
class Marked:
    """A function that the reactor may run.

    Attributes:
        path: its file.
        function: its syntax tree.
        unmarked: unmarked functions of its module and, with ``self.``, unmarked methods of its class.
    """

    path: Path
    function: Function
    unmarked: frozenset[str]


def marked_functions(paths: Iterable[Path]) -> list[Marked]:
    """All functions that the reactor may run."""
    found = []
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = _unmarked(tree.body, "")
        found += _marked_in(path, tree.body, of_module)
        for each in tree.body:
            if isinstance(each, ast.ClassDef):
                found += _marked_in(path, each.body, of_module | _unmarked(each.body, "self."))
    return found


def breaches(where: str, function: Function, marked: frozenset[str], unmarked: frozenset[str]) -> list[Breach]:
    """The places in a function that break the rule.

    Args:
        where: the file, for the report.
        function: a marked one.
        marked: the names of all marked functions.
        unmarked: as of `Marked`.
    """
    reader = _Reader(where, marked | CALLBACKS | {LEAVES, *WITH_CARE}, unmarked)
    reader.block(function.body, is_in_task=False)
    return reader.found


def _marked_in(path: Path, body: list[ast.stmt], unmarked: frozenset[str]) -> list[Marked]:
    """Return the marked functions of a class or a module, including nested ones."""
    return [
        Marked(path, node, unmarked)
        for each in body
        if not isinstance(each, ast.ClassDef)
        for node in ast.walk(each)
        if isinstance(node, Function) and any(map(_is_mark, node.decorator_list))
    ]


def _unmarked(body: list[ast.stmt], prefix: str) -> frozenset[str]:
    return frozenset(
        prefix + each.name
        for each in body
        if isinstance(each, Function)
        and each.name not in {LEAVES, *WITH_CARE}
        and not any(map(_is_mark, each.decorator_list))
    )


class _Reader:
    """Follows the paths through a function; each method returns whether what follows is surely run in a task."""

    def __init__(self, where: str, allowed: frozenset[str], unmarked: frozenset[str]) -> None:
        self._where = where
        self._unmarked = unmarked
        self._allowed = allowed
        self.found: list[Breach] = []

    def block(self, statements: list[ast.stmt], *, is_in_task: bool) -> bool:
        for statement in statements:
            if is_in_task:
                return True
            is_in_task = self._statement(statement)
            if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
                return True  # nothing follows
        return is_in_task

    def _statement(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return False
            case ast.If() if ast.unparse(statement.test) == IN_TASK:
                return self.block(statement.orelse, is_in_task=False)
            case ast.If():
                is_in_task = self._expression(statement.test)
                branches = [self.block(each, is_in_task=is_in_task) for each in (statement.body, statement.orelse)]
                return all(branches)
            case ast.While():
                is_in_task = self._expression(statement.test)
                self.block(statement.body, is_in_task=is_in_task)
                return is_in_task
            case ast.For():
                is_in_task = self._expression(statement.iter)
                self.block(statement.body, is_in_task=is_in_task)
                return is_in_task
            case ast.AsyncFor() | ast.AsyncWith():
                self._breach(statement, "an asynchronous block")
                return False
            case ast.With():
                is_in_task = any([self._expression(item.context_expr) for item in statement.items])
                return self.block(statement.body, is_in_task=is_in_task)
            case ast.Try() | ast.TryStar():
                return self._try(statement)
            case ast.Match():
                is_in_task = self._expression(statement.subject)
                for case in statement.cases:
                    self.block(case.body, is_in_task=is_in_task)
                return is_in_task
            case _:
                return self._expression(statement)

    def _try(self, statement: ast.Try | ast.TryStar) -> bool:
        after = [self.block([*statement.body, *statement.orelse], is_in_task=False)]
        after += [self.block(handler.body, is_in_task=False) for handler in statement.handlers]
        return self.block(statement.finalbody, is_in_task=False) or all(after)

    def _expression(self, node: ast.AST, *, is_certain: bool = True) -> bool:
        """Read an expression in order of evaluation."""
        match node:
            case ast.Lambda():
                return False
            case ast.Await():
                is_in_task = self._expression(node.value, is_certain=is_certain)
                return (self._await(node, node.value) and is_certain) or is_in_task
            case ast.Call() if _is_of_trio(node.func):
                self._breach(node, ast.unparse(node.func))
            case ast.BoolOp() | ast.IfExp():
                is_certain = False
        return any(self._expression(child, is_certain=is_certain) for child in ast.iter_child_nodes(node))

    def _await(self, node: ast.Await, awaited: ast.expr) -> bool:
        if isinstance(awaited, ast.IfExp):
            self._await(node, awaited.body)
            self._await(node, awaited.orelse)
            return False
        if _name(awaited) in AWAITED:
            return False
        name = _called(awaited)
        if name not in self._allowed or (isinstance(awaited, ast.Call) and ast.unparse(awaited.func) in self._unmarked):
            self._breach(node, f"await {ast.unparse(awaited)}")
        return name == LEAVES

    def _breach(self, node: ast.stmt | ast.expr, what: str) -> None:
        self.found.append(Breach(self._where, node.lineno, what))


def _is_mark(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == MARK


def _called(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    return _name(node.func)


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _is_of_trio(function: ast.expr) -> bool:
    """Whether a call goes to trio and needs a task."""
    names = list(_attributes(function))
    return bool(names) and names[-1] == "trio" and names[0] not in HARMLESS


def _attributes(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute):
        yield node.attr
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
