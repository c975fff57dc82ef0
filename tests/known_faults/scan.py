"""Finds the tests that carry ``@pytest.mark.fault``, by reading the files: no test is imported or run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

REPO: Final = Path(__file__).parents[2]
TESTS: Final = REPO / "tests"

_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Test:
    """A test, as its source has it.

    Attributes:
        node: Its node id, without parameters.
        rows: The rows that it names.
        docstring: The first line of its docstring.
    """

    __test__ = False

    node: str
    rows: tuple[str, ...]
    docstring: str


def find_tests(folder: Path = TESTS) -> list[Test]:
    """Return all tests of a folder, in the order of files and lines."""
    found: list[Test] = []
    for path in sorted(folder.rglob("test_*.py")):
        if "node_modules" not in path.parts:
            found += read_tests(path.read_text(encoding="utf-8"), path.relative_to(folder.parent).as_posix())
    return found


def read_tests(source: str, node: str) -> list[Test]:
    """Return the tests of one file; marks of the module and of classes hold for what is in them."""
    module = ast.parse(source, node)
    outer: list[str] = []
    for statement in module.body:
        if isinstance(statement, ast.Assign) and any(_is_named(target, "pytestmark") for target in statement.targets):
            outer += _rows_in(statement.value)
    return list(_walk(module.body, node, outer))


def _walk(body: list[ast.stmt], prefix: str, outer: list[str]) -> Iterator[Test]:
    for definition in body:
        if not isinstance(definition, _Definition):
            continue
        rows = outer + [row for decorator in definition.decorator_list for row in _rows_in(decorator)]
        node = f"{prefix}::{definition.name}"
        if isinstance(definition, ast.ClassDef):
            if definition.name.startswith("Test"):
                yield from _walk(definition.body, node, rows)
        elif definition.name.startswith("test"):
            text = (ast.get_docstring(definition) or "").partition("\n")[0]
            yield Test(node, tuple(dict.fromkeys(rows)), text)


def _rows_in(expression: ast.expr) -> list[str]:
    """Return the arguments of every ``....fault(...)`` in an expression."""
    rows: list[str] = []
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fault":
            for argument in node.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise TypeError(f"line {node.lineno}: the rows of a fault mark must be written out as texts")
                rows.append(argument.value)
    return rows


def _is_named(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
