"""Every example in a docstring is run, and examples are not lost."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"

EXAMPLES_MIN = 50
"""A floor, raised as examples are added: a refactoring must not drop them unseen."""


def docstrings(path: Path) -> list[str]:
    """Return the docstrings of the module at ``path``, of its classes and of its functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return [text for node in nodes if (text := ast.get_docstring(node))]


def examples(path: Path) -> int:
    """Count the examples in the docstrings of the module at ``path``."""
    return sum(len(doctest.DocTestParser().get_examples(text)) for text in docstrings(path))


COUNTS = {path: count for path in sorted(SOURCE.rglob("*.py")) if (count := examples(path))}


def module_name(path: Path) -> str:
    """Return the name under which the module at ``path`` is imported."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", COUNTS, ids=module_name)
def test_every_example_tells_the_truth(path: Path) -> None:
    """An example that no longer holds teaches a reader something false."""
    result = doctest.testmod(importlib.import_module(module_name(path)), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {module_name(path)} are wrong"
    assert result.attempted == COUNTS[path], "some examples stand where doctest does not look"


def test_examples_are_not_lost() -> None:
    """Without a floor the examples could vanish one by one."""
    assert sum(COUNTS.values()) >= EXAMPLES_MIN
