"""What review should not have to look for: sizes, names, order, and traces of the machine a file was written on.

Docstrings of public names, FIXME and TODO, bare ``noqa`` and the bans on time and chance are ruff's part (see
pyproject.toml); here stands what ruff cannot say.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

FILE_LINES_MEDIAN_MIN, FILE_LINES_MEDIAN_MAX = 160, 300
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
assert FUNCTION_LINES_MAX < FILE_LINES_MEDIAN_MIN < FILE_LINES_MEDIAN_MAX < FILE_LINES_MAX

#: Where the project's own files are.
PLACES = ("src", "tests", "tools", "docs", ".ci")
CODE = ("src", "tests", "tools")

HOMELESS = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})

#: Paths of one machine, and words of one workplace (written so that this line does not find itself).
TRACES = re.compile(
    r"(?<![\w.:/])/(?:work|root|home)/\w|/tmp/[w]\b|/opt/[w]heels|\.[l]ibrary/"
    r"|BRIEF[.]md|helper [\"“]|(?i:\b[c]laude\b|[a]nthropic)"
)
NOT_OURS = frozenset(
    {"__pycache__", ".git"}
)  # a linked worktree has a file of that name, which says where it is linked
OPTIMISED = re.compile(r"\bpython[\d.]*\s+(?:-\w+\s+)*-[O]|PYTHON[O]PTIMIZE")

#: Functions that give the same answer in whatever order their argument comes.
ORDER_FREE = frozenset({"sorted", "set", "frozenset", "any", "all", "sum", "len", "min", "max"})

#: Runtime dependencies whose module has another name, or that are needed without being imported.
MODULE_OF = {
    "foundationdb": "fdb",
    "google-crc32c": "google_crc32c",
    "highwayhash-cffi": "highwayhash",
    "opentelemetry-sdk": "opentelemetry",
    "protobuf": "google",
    "pyyaml": "yaml",
}
NEEDED_BY_OTHERS = frozenset({"pandas"})  # by PySpark


def python_files(*roots: str) -> list[Path]:
    """Return the Python files under ``roots``."""
    return sorted(path for root in roots for path in (ROOT / root).rglob("*.py"))


def text_files() -> Iterator[tuple[Path, str]]:
    """Yield every text file of the project with its text."""
    paths = [path for place in PLACES for path in (ROOT / place).rglob("*")] + list(ROOT.glob("*"))
    for path in sorted(paths):
        if path.is_file() and path.suffix not in {".pyc", ".lock"} and not NOT_OURS & {*path.parts}:
            try:
                yield path.relative_to(ROOT), path.read_text()
            except UnicodeDecodeError:
                continue  # a binary sample


def long_functions(text: str) -> Iterator[str]:
    """Yield the functions of ``text`` that are longer than allowed, docstring included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name}: {lines} lines"


def _is_set(node: ast.AST) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(ast.Name("set" | "frozenset")):
            return True
        case ast.BinOp(left, ast.Sub() | ast.BitOr() | ast.BitAnd() | ast.BitXor(), right):
            return any(_is_set(side) or _is_keys(side) for side in (left, right))
    return False


def _is_keys(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Attribute(_, "keys" | "items"), []):
            return True
    return False


def unordered(text: str) -> Iterator[int]:
    """Yield the lines of ``text`` where a set is iterated, or made a sequence, in its arbitrary order."""
    tree = ast.parse(text)
    forgiven = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_FREE
        for argument in node.args
    }
    for node in ast.walk(tree):
        match node:
            case ast.For(_, iterated) if _is_set(iterated):
                yield node.lineno
            case ast.ListComp(_, loops) | ast.GeneratorExp(_, loops) | ast.DictComp(_, _, loops):
                if id(node) not in forgiven and any(_is_set(loop.iter) for loop in loops):
                    yield node.lineno
            case ast.Call(ast.Name("list" | "tuple" | "enumerate" | "iter" | "next"), [first, *_]):
                if id(node) not in forgiven and _is_set(first):
                    yield node.lineno
            case ast.Call(ast.Attribute(_, "join"), [first]) if _is_set(first):
                yield node.lineno


def outside_modules() -> set[str]:
    """Return the top-level modules of others that the package imports."""
    found = set()
    for path in python_files("src"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names):
                    found |= {name.name.partition(".")[0] for name in names}
                case ast.ImportFrom(str(origin)):
                    found.add(origin.partition(".")[0])
    return found - sys.stdlib_module_names - {"strandline"}


def settings() -> dict[str, Any]:
    """Return what pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def declared() -> dict[str, set[str]]:
    """Return the dependencies that pyproject.toml declares, by group ("" is the package itself)."""
    project = settings()["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {group: {re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in wanted} for group, wanted in groups.items()}


def places_in_settings() -> Iterator[str]:
    """Yield the paths and globs of pyproject.toml, from the root of the project."""
    tool = settings()["tool"]
    yield from (*tool["ruff"]["src"], *tool["mypy"]["files"], *tool["mypy"]["mypy_path"].split(":"))
    pytest_settings = tool["pytest"]["ini_options"]
    yield from (*pytest_settings["testpaths"], *pytest_settings["pythonpath"])
    yield from tool["hatch"]["build"]["targets"]["sdist"]["include"]
    yield from tool["ruff"]["lint"]["per-file-ignores"]


def test_settings_name_only_what_is_there() -> None:
    """Damage: an exception for a place that is gone later applies to whatever takes its name, unasked."""
    assert [place for place in (*PLACES, *CODE, *places_in_settings()) if not any(ROOT.glob(place))] == []
    tool = settings()["tool"]
    roots = [ROOT / root for root in ("src", *tool["pytest"]["ini_options"]["pythonpath"])]
    ours = {path.stem for root in roots for path in root.iterdir()}
    assert set(tool["ruff"]["lint"]["isort"]["known-first-party"]) - ours == set()


def test_a_file_is_neither_a_sliver_nor_a_heap() -> None:
    """A file that holds two subjects hides one of them; a subject in five files is found in none."""
    lines = {path: len(path.read_text().splitlines()) for path in python_files("src") if path.name != "__init__.py"}
    assert FILE_LINES_MEDIAN_MIN <= median(lines.values()) <= FILE_LINES_MEDIAN_MAX
    assert {str(path): count for path, count in lines.items() if count > FILE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    """Damage: no reviewer reads a function that does not fit a screen."""
    assert [f"{path}: {each}" for path in python_files("src") for each in long_functions(path.read_text())] == []


def test_every_module_has_a_subject() -> None:
    """What lands in a drawer named `utils` is never found again, and is written twice."""
    assert [str(path) for path in python_files(*CODE) if HOMELESS & {path.stem, path.parent.name}] == []


def test_sets_are_sorted_before_they_are_iterated() -> None:
    """The order of a set changes with the hash seed: the same seed would no longer replay the same run."""
    assert [f"{path}:{line}" for path in python_files("src") for line in unordered(path.read_text())] == []


def test_no_file_names_the_machine_it_was_written_on() -> None:
    """A path of one machine works on no other."""
    found = [f"{path}: {hit.group()}" for path, text in text_files() for hit in TRACES.finditer(text)]
    assert found == []


def test_assertions_are_never_switched_off() -> None:
    """Laws are assertions: an optimised interpreter would commit states that break them."""
    assert __debug__
    assert [str(path) for path, text in text_files() if OPTIMISED.search(text)] == []


def test_every_import_is_declared() -> None:
    """A module that is only here by accident is missing on the user's machine."""
    packages = set().union(*declared().values())
    assert outside_modules() - {MODULE_OF.get(name, name.replace("-", "_")) for name in packages} == set()


def test_every_dependency_is_used() -> None:
    """A dependency that nothing imports is one more thing to install, to trust and to break."""
    used = outside_modules()
    idle = {name for name in declared()[""] if MODULE_OF.get(name, name.replace("-", "_")) not in used}
    assert idle - NEEDED_BY_OTHERS == set()


@pytest.mark.parametrize(
    "text",
    [
        "for each in {1, 2}: pass",
        "for each in set(a) - b: pass",
        "for each in a.keys() | b.keys(): pass",
        "x = [each for each in {a for a in b}]",
        "x = tuple(frozenset(a))",
        "x = ','.join({a, b})",
    ],
)
def test_the_check_sees_a_planted_set(text: str) -> None:
    """A check that sees nothing would let order depend on the hash seed."""
    assert list(unordered(text)) == [1]


@pytest.mark.parametrize(
    "text", ["for each in sorted({1, 2}): pass", "x = sorted(a for a in set(b))", "x = len(set(b))"]
)
def test_the_check_lets_sorted_sets_pass(text: str) -> None:
    """A check that refuses what is right would be switched off."""
    assert list(unordered(text)) == []


def test_the_check_sees_a_planted_long_function() -> None:
    """A check that sees nothing would let functions grow."""
    body = "    pass\n" * (FUNCTION_LINES_MAX - 1)
    assert list(long_functions(f"def f():\n{body}")) == []
    assert list(long_functions(f"async def f():\n{body}    pass\n")) == [f"f: {FUNCTION_LINES_MAX + 1} lines"]


def test_the_check_sees_planted_traces() -> None:
    """A check that sees nothing would let one machine's paths out."""
    assert TRACES.search("see /" + "work/main")
    assert TRACES.search("open('/" + "root/x')")
    assert not TRACES.search("https://example.org/" + "work/1")
    assert OPTIMISED.search("python3 -" + "O -m strandline")
