"""Sentences have an actor and a verb: words that hide the actor are not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

AVOIDED = {
    "whoever": "name the actor: the writer, the caller, the reader",
    "nobody": "name the actor: no other process, no reader",
    "somebody": "name the actor: another writer, another environment",
    "anybody": "name the actor",
    "any more": "no longer",
    "is told": "the caller receives, the reader reports, the call returns or raises",
    "are told": "the callers receive, the readers report, the calls return or raise",
    "less than no times": "a negative count",
}
"""Word → what to write instead."""
WORD = re.compile(rf"\b({'|'.join(AVOIDED)})\b", re.IGNORECASE)


def texts() -> Iterator[Path]:
    """Return what people read: the documents, and the source with its docstrings, comments and messages."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted(path for path in (ROOT / "tools").iterdir() if path.is_file())


def said(path: Path) -> str:
    """Return the claims of the tests in ``path``: their names and docstrings (what a test does is not prose)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found.append(node.name.replace("_", " "))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            found.append(ast.get_docstring(node) or "")
    return "\n".join(found)


def avoided(text: str) -> list[str]:
    """Return where words stand that are avoided, and what to write instead."""
    return [
        f"line {number}: {found[0]!r} ({AVOIDED[found[0].lower()]})"
        for number, line in enumerate(text.splitlines(), 1)
        for found in WORD.finditer(line)
    ]


def test_no_text_hides_its_actor() -> None:
    """Damage: a reader has to guess which process, caller or person a sentence speaks of."""
    found = {path.relative_to(ROOT).as_posix(): avoided(path.read_text()) for path in texts()}
    tests = sorted((ROOT / "tests").rglob("*.py"))
    found |= {path.relative_to(ROOT).as_posix(): avoided(said(path)) for path in tests}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize("word", AVOIDED)
def test_the_check_sees_a_planted_word(word: str) -> None:
    """A check that sees nothing would let the words come back."""
    assert len(avoided(f"A line.\nThis {word.upper()} stands here.")) == 1
