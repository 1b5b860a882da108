"""What documents, docstrings and comments name is there: files, links, modules, and what is in modules and classes.

A path (``persist/shard/state.py``, or of a room ``persist/shard/``) may be given from the root of the project, from the
package, from a directory of tests, or from where the document stands; a bare file name must be one of the same room.
A dotted name (in backquotes, or one that begins with ``strandline.``) must begin with a package, module or class that
is there, and lead to something in it: ``materialize.feed.Feed``, ``trace.due``, ``Engine.stage``.

The check is by names alone: it does not know whether what is said of them is true.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from strandline.controller.introspection.relations import RELATIONS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "strandline"
TESTS = ROOT / "tests"
ROOTS = (ROOT, ROOT / "src", PACKAGE, TESTS, TESTS / "simulation")
PLACES = ("src", "tests", "tools", "docs", ".ci")

PATH = re.compile(r"(?<![\w./*<>{}$~-])((?:[\w.-]+/)*[\w-]+\.(?:py|md))(?![\w/*])")
LINK = re.compile(r"\]\(([^)#:\s]+)\)")
ROOM = re.compile(r"`((?:[a-z_]+/){2,})`")
IN_THE_PACKAGE = re.compile(r"`(([a-z_]+)(?:/[a-z_]+)+)`")
"""A room or module of the package by its path, without an ending."""
DOTTED = re.compile(
    r"(?<![\w.`/-])(strandline(?:\.[A-Za-z_]\w*)+)(?![\w/])|(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`(?!`)"
)
WRITTEN = re.compile(r"^```\w+ title=\"([^\"]+)\"$", re.MULTILINE)
"""A file that the reader of a page writes, as the page says."""
ELSEWHERE = re.compile(r"\b(?:design|craft)\s+pages?\b", re.IGNORECASE)
"""A document that the repository does not have."""
NOT_OURS = frozenset(
    {"collection", "env", "exp", "gc", "google", "jdk", "os", "random", "spark", "sys", "time", "uuid"}
)
"""What begins a dotted name of something else: a variable of an example, a setting of Spark, a library, Python."""
FILES = frozenset({"py", "md", "yml", "sh", "sql", "db", "toml", "txt", "csv", "gz", "duckdb", "lock"})
"""Endings of what looks like a dotted name and is a file: a path is checked as a path."""


@cache
def file_names(room: Path) -> frozenset[str]:
    """Return the file names that a text in the directory ``room`` may use bare: of its top room, else of all files."""
    if PACKAGE in room.parents:
        return frozenset(path.name for path in (PACKAGE / room.relative_to(PACKAGE).parts[0]).rglob("*"))
    inside = {path.name for place in PLACES for path in (ROOT / place).rglob("*")}
    return frozenset(inside | {path.name for path in ROOT.iterdir()})


@cache
def modules() -> dict[str, list[Path]]:
    """Return the modules and packages of the project by their last names."""
    found: dict[str, list[Path]] = {}
    for path in [PACKAGE, *PACKAGE.rglob("*"), *TESTS.rglob("*")]:
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__"):
            found.setdefault(path.stem, []).append(path)
    return found


@cache
def defined(module: Path) -> frozenset[str]:
    """Return what a module's text defines or imports, and ``Class.attribute`` for what its classes define."""
    return frozenset(_defined(ast.parse(module.read_text()).body))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name):
                yield name
                yield from (f"{name}.{each}" for each in _defined(node.body))
                fields = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
                yield from (f"{name}.{each.attr}" for each in fields if getattr(each.value, "id", "") == "self")
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield name
            case ast.Import(names) | ast.ImportFrom(_, names):
                yield from (each.asname or each.name for each in names)
            case ast.Assign() | ast.AnnAssign():
                yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
            case ast.If(body=inner) | ast.Try(body=inner) | ast.With(body=inner):
                yield from _defined(inner)


@cache
def classes() -> dict[str, set[str]]:
    """Return the classes of the project by name, each with its attributes and the names of its bases."""
    found: dict[str, set[str]] = {}
    for path in (path for paths in modules().values() for path in paths if path.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                inside = {each.partition(".")[2] for each in _defined([node])}
                found.setdefault(node.name, set()).update(inside, map(ast.unparse, node.bases))
    return found


def has(name: str, attribute: str, seen: frozenset[str] = frozenset()) -> bool:
    """Tell whether a class ``name``, or one that it inherits from, has the attribute.

    Several classes may have one name: the bases of one of them may lead back to another.
    """
    known, seen = classes().get(name, set()), seen | {name}
    return attribute in known or any(has(base, attribute, seen) for base in known & classes().keys() - seen)


def is_in(place: Path, parts: list[str]) -> bool:
    """Tell whether ``parts`` lead from a package or module to a module, or to what one defines."""
    if not parts:
        return True
    if place.is_dir():
        inner = [place / parts[0], place / f"{parts[0]}.py"]
        if any(is_in(each, parts[1:]) for each in inner if each.exists()):
            return True
        place /= "__init__.py"
    return place.is_file() and ".".join(parts[:2]) in defined(place)


def is_there(dotted: str) -> bool:
    """Tell whether a dotted name leads to something: from a module, package or class of the project, or in a query."""
    first, *rest = dotted.split(".")
    if first == "strandline" and rest[0] in RELATIONS and {*rest[1:]} <= {*RELATIONS[rest[0]].schema.names}:
        return True  # a query may name it
    return has(first, rest[0]) or any(is_in(each, rest) for each in modules().get(first, ()))


def stale(text: str, room: Path) -> Iterator[str]:
    """Yield what ``text``, which stands in the directory ``room``, names and is not there."""
    roots = (*ROOTS, room, room.parent)
    own = frozenset(WRITTEN.findall(text))
    for hit in PATH.finditer(text):
        path = hit.group(1)
        if path not in own and not (
            path in file_names(room) if "/" not in path else any((root / path).is_file() for root in roots)
        ):
            yield path
    yield from (hit.group() for hit in ELSEWHERE.finditer(text))
    for hit in LINK.finditer(text):
        if not (room / hit.group(1)).exists():
            yield hit.group(1)
    for hit in ROOM.finditer(text):
        if not any((root / hit.group(1)).is_dir() for root in roots):
            yield hit.group(1)
    for hit in IN_THE_PACKAGE.finditer(text):
        place = PACKAGE / hit.group(1)
        if hit.group(2) in rooms() and not (place.is_dir() or place.with_suffix(".py").is_file()):
            yield hit.group(1)
    for hit in DOTTED.finditer(text):
        dotted = hit.group(1) or hit.group(2)
        first, last = dotted.partition(".")[0], dotted.rpartition(".")[2]
        if first not in NOT_OURS and last not in FILES and not is_there(dotted):
            yield dotted


def documents() -> Iterator[tuple[Path, str]]:
    """Yield what is written for people: documents and settings, comments of the package, and all docstrings."""
    for path in sorted(
        [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    ):
        yield path, path.read_text()
    for path in sorted(PACKAGE.rglob("*.py")):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        yield path, "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)
    for path in sorted(path for root in (PACKAGE, TESTS, ROOT / "tools") for path in root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield path, node.value.value


def test_what_documents_docstrings_and_comments_name_is_there() -> None:
    """A reader who follows a name into nothing no longer trusts the map, and a newcomer has no other one."""
    found = {f"{path.relative_to(ROOT)}: {name}" for path, text in documents() for name in stale(text, path.parent)}
    assert sorted(found) == []


def rooms_of(text: str) -> set[str]:
    """Return the rooms and inner rooms that the table of floors in ``text`` names."""
    rows = [line for line in text.partition("## The floors")[2].partition("\n## ")[0].splitlines() if line[:3] == "| `"]
    return set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*)`", " ".join(rows)))


@cache
def rooms() -> set[str]:
    """Return the package's rooms, and the rooms in them."""
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
    return packages | {path.stem for path in PACKAGE.glob("*.py") if path.stem.strip("_") == path.stem}


def test_the_map_has_every_room() -> None:
    """A room that the map leaves out is found by accident, and gathers what does not belong there."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert sorted(rooms() - rooms_of(text)) == []
    assert rooms_of(text.replace("`compute/sink`", "")) < rooms_of(text), "a check that sees nothing"


@pytest.mark.parametrize(
    "text",
    [
        "The laws stand in `persist/machine.py`.",
        "see persist/state/machine.py for more",
        "its own file (`no_such_file.py`)",
        "[the map](docs/no_such_page)",
        "rooms: `persist/no_such_room/`",
        "readers (`sources/readers/no_such_reader`)",
        "Made by `strandline.environment.core.Core`.",
        "the facade is strandline.no_such_module",
        "Reads as `materialize.feed.Feeder` says.",
        "See `Engine.no_such_method`.",
        "See `trace.no_such_function(batches)`.",
        "See `no_such_module.due`.",
        "Ask `strandline.frontiers.no_such_column`.",
        'Why: design page "no such page" (decisions).',
    ],
)
def test_the_check_sees_a_planted_stale_name(text: str) -> None:
    """A check that sees nothing would let every move of a file leave its old name behind."""
    assert len(list(stale(text, ROOT))) == 1


def test_a_bare_name_is_one_of_its_own_room() -> None:
    """A name that was moved away would be taken for its namesake in another room."""
    assert list(stale("see `fsm.py`", PACKAGE / "persist" / "shard")) == ["fsm.py"]
    assert list(stale("see `fsm.py`", PACKAGE / "materialize" / "drivers")) == []


@pytest.mark.parametrize(
    "text",
    [
        "`persist/shard/machine.py`, src/strandline/client/environment.py, `shard/state.py`, `trace.py`",
        "rooms: `persist/handles/` and `tests/simulation/`, a directory `tables/` of a project",
        "`strandline.open`, `strandline.errors.ConfigError`, `materialize.feed.Feed`, `trace.due`, `persist.shard`",
        "`Engine.stage`, inherited `Engine.merge`, assigned `Health.published_problems`, `ReadHandle.snapshot(time)`",
        "`strandline.frontiers`, with a column `strandline.frontiers.lag_ms`",
        "a file `strandline.yml`, a setting `spark.sql.ansi.enabled`, a call `env.tick()`, a pattern `b/*.py`",
    ],
)
def test_the_check_lets_names_pass_that_are_there(text: str) -> None:
    """A check that refuses what is right would be switched off."""
    assert list(stale(text, PACKAGE / "persist")) == []
