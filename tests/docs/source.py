"""Reads what the code says of itself: docstrings, their sections, and the strings below attributes."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import ws_responses
from ws_responses.errors import WireError

REPO: Final = Path(__file__).parents[2]
NO_SERVERS: Final = frozenset({"testing", "bench", "adapters", "chat", "conformance"})
"""Parts of the package that tell no client anything."""

PACKAGE: Final = REPO / "ws_responses"

_ROLE: Final = re.compile(r":[a-z]+:`~?(?:[\w.]+\.)?(\w+)`")
_SECTION: Final = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)


def tree_of(module: ModuleType) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(inspect.getsource(module))


def markdown(text: str) -> str:
    """A docstring's paragraph as one line of Markdown."""
    return _ROLE.sub(r"`\1`", " ".join(text.split())).replace("``", "`")


def summary(thing: Any) -> str:
    """The text of a docstring before its first section, as one paragraph."""
    return markdown(_SECTION.split(inspect.getdoc(thing) or "")[0])


def section(thing: Any, name: str) -> dict[str, str]:
    """The entries of a docstring's section, such as `Args`, by name."""
    parts = _SECTION.split(inspect.getdoc(thing) or "")
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    entries: dict[str, str] = {}
    for entry in re.split(r"^    (?=\S)", bodies.get(name, ""), flags=re.MULTILINE)[1:]:
        key, _, text = entry.partition(":")
        entries[key] = markdown(text)
    return entries


def attribute_docs(body: list[ast.stmt]) -> dict[str, str]:
    """The strings that stand below assignments."""
    found: dict[str, str] = {}
    for statement, below in pairwise(body):
        target = _target(statement)
        if target and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target] = markdown(str(below.value.value))
    return found


def assigned(module: ModuleType, name: str) -> str:
    """The source of the value that a module gives a name."""
    for statement in tree_of(module).body:
        if _target(statement) == name and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            return ast.unparse(statement.value)
    raise LookupError(f"{module.__name__} assigns no {name}")


def class_body(kind: type) -> list[ast.stmt]:
    """The statements of a class."""
    module = inspect.getmodule(kind)
    assert module is not None
    for statement in tree_of(module).body:
        if isinstance(statement, ast.ClassDef) and statement.name == kind.__name__:
            return statement.body
    raise LookupError(f"{module.__name__} defines no {kind.__name__}")


def parameters(function: Callable[..., Any]) -> Iterator[tuple[str, str, str | None]]:
    """Name, type and default of each keyword-only parameter, as they are written."""
    (definition,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    for argument, default in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True):
        assert argument.annotation is not None
        yield argument.arg, _type(argument.annotation), None if default is None else ast.unparse(default)


def _type(annotation: ast.expr) -> str:
    """A type as it is written, without the quotes around one that is not loaded."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def fields(kind: type) -> dict[str, str]:
    """The annotated fields of a class and their types, as they are written."""
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in class_body(kind)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def modules() -> Iterator[ast.Module]:
    """The syntax trees of the modules that serve clients: no tools for tests, no benchmarks, no client."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if not NO_SERVERS & set(path.relative_to(PACKAGE).parts):
            yield ast.parse(path.read_text(encoding="utf-8"))


def wire_errors() -> list[type[WireError]]:
    """All errors that the package can tell a client, those of ``errors.py`` first."""
    for module in pkgutil.walk_packages(ws_responses.__path__, "ws_responses."):
        if not NO_SERVERS & set(module.name.split(".")) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(_relatives(WireError), key=lambda kind: (kind.__module__ != WireError.__module__, kind.__module__))


def _relatives(kind: type[WireError]) -> Iterator[type[WireError]]:
    if kind.__module__.startswith("ws_responses.") and not NO_SERVERS & set(kind.__module__.split(".")):
        yield kind
    for relative in kind.__subclasses__():
        yield from _relatives(relative)


def keyword_literals(*names: str) -> Iterator[Any]:
    """The literal values given to keywords of these names, in all calls of the package."""
    for tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg in names and isinstance(node.value, ast.Constant):
                yield node.value.value


def _target(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case _:
            return None
