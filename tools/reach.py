"""Which tests run which statements: recorded once from a marked copy of the code, asked for each planted mistake.

`marked` writes a call into each block of a module's functions (`blocks` in `mutations.py`).  A coverage tool could say
the same of lines; this needs none, costs one call for each block that is entered, and its names hold when lines move.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import mutations

MARKS: Final = "block_marks"
"""The module that a marked copy imports; the `Recorder` of `mutant_worker.py` reads it."""
FORM: Final = 2
"""Which tests are recorded, and how: what was saved in another form is recorded again."""
MARKS_SOURCE: Final = "seen: set[str] = set()\nmark = seen.add\n"


@dataclass(frozen=True, slots=True)
class Reached:
    """What one test ran, in how many seconds, and whether it needs Spark, or a server."""

    seconds: float
    blocks: frozenset[str]
    spark: bool = False
    server: bool = False


@dataclass(slots=True)
class Reach:
    """What was recorded: test file → digest of its text, and test → what it ran.

    Trap: it is renewed for a test file that changed, not for code that changed.  A block that is new is reached by no
    test until all is recorded again (``--anew``).
    """

    files: dict[str, str] = field(default_factory=dict)
    tests: dict[str, Reached] = field(default_factory=dict)

    def forget(self, files: Iterable[str]) -> None:
        """Forget what the tests of ``files`` ran."""
        gone = frozenset(files)
        self.files = {path: digest for path, digest in self.files.items() if path not in gone}
        self.tests = {test: ran for test, ran in self.tests.items() if file_of(test) not in gone}

    def missing(self, root: Path, files: Iterable[str]) -> list[str]:
        """Return those of ``files`` that were not recorded as they are now."""
        return [path for path in files if self.files.get(path) != digest(root / path)]

    def running(self, path: str, block: str | None, under: tuple[str, ...]) -> list[str]:
        """Return the tests in ``under`` that run a block of the module ``path``: the nearest first, then the fastest.

        Without a block (a module's own statements): those that run anything of the module.
        """
        wanted = f"{path}:{block}"
        room = Path(path).relative_to("src/strandline").parent

        def near(test: str) -> int:
            folder = Path(file_of(test)).parent
            return (folder != Path("tests") / room) + (folder.parts[1:2] != room.parts[:1])

        found = [
            test
            for test, ran in self.tests.items()
            if test.startswith(under)
            and (wanted in ran.blocks if block else any(each.startswith(f"{path}:") for each in ran.blocks))
        ]
        return sorted(found, key=lambda test: (near(test), self.tests[test].seconds, test))

    def save(self, path: Path) -> None:
        """Write all down; a block's name once."""
        names = sorted({block for ran in self.tests.values() for block in ran.blocks})
        number = {name: at for at, name in enumerate(names)}
        tests = {
            test: [ran.seconds, sorted(number[block] for block in ran.blocks), ran.spark, ran.server]
            for test, ran in self.tests.items()
        }
        path.write_text(json.dumps({"form": FORM, "files": self.files, "blocks": names, "tests": tests}))


def load(path: Path) -> Reach:
    """Read what was saved in this form, or nothing."""
    held = json.loads(path.read_text()) if path.exists() else {}
    if held.get("form") != FORM:
        return Reach()
    names = held["blocks"]
    tests = {
        test: Reached(seconds, frozenset(names[at] for at in blocks), spark, server)
        for test, (seconds, blocks, spark, server) in held["tests"].items()
    }
    return Reach(held["files"], tests)


def marked(source: str, path: str) -> str:
    r"""Return a module that does the same and marks each block that it enters; a program that stands alone marks none.

    >>> print(marked("def f(x):\n    return x", "m"))
    try:
        from block_marks import mark as mark_block
    except ImportError:
        mark_block = str
    <BLANKLINE>
    def f(x):
        mark_block('m:f#0')
        return x
    """
    tree = ast.parse(source)
    for key, body in list(mutations.blocks(tree)):
        first = body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        (call,) = ast.parse(f"mark_block({f'{path}:{key}'!r})").body
        body.insert(1 if documented else 0, call)
    at = next((n for n, each in enumerate(tree.body) if not _leading(each)), len(tree.body))
    importing = f"try:\n    from {MARKS} import mark as mark_block\nexcept ImportError:\n    mark_block = str"
    tree.body[at:at] = ast.parse(importing).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _leading(statement: ast.stmt) -> bool:
    """Say whether a statement must stand before all others: the docstring, imports from `__future__`."""
    match statement:
        case ast.Expr(ast.Constant(str())) | ast.ImportFrom("__future__"):
            return True
    return False


def read(answer: Mapping[str, tuple[float, list[str], bool, bool]]) -> dict[str, Reached]:
    """Return what the `Recorder` of `mutant_worker.py` wrote."""
    return {test: Reached(seconds, frozenset(blocks), *needs) for test, (seconds, blocks, *needs) in answer.items()}


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def digest(path: Path) -> str:
    """Return what tells one text of a file from another."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
