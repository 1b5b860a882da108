"""docs/reference is what the code declares; limits are those of the code; links of the comparison lead somewhere."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

import reference
import strandline

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
LIMITS: Final = re.findall(
    r"^\| [^|]+ \| ([^|]+) \| [^|]+ \| `([\w.]+)` \|$", (DOCS / "limits.md").read_text(), re.MULTILINE
)
LIMITS_MIN: Final = 20
UNITS: Final = {"MiB": 1 << 20, "s": 1, "years": 1, "": 1}
TEST_LINK: Final = re.compile(r"\]\(((?:\.\./)+tests/[\w/]+\.py)(?:#(\w+))?\)")


def test_the_reference_is_what_the_code_declares() -> None:
    """Damage: a command, an option or a call that no reader finds, or one that is refused as the page shows it."""
    assert reference.differing() == [], "write it anew: python tools/reference.py"


def test_every_public_name_is_in_the_reference() -> None:
    """Damage: a name that programs may use is nowhere described."""
    page = (DOCS / "reference" / "python.md").read_text()
    for name in (*strandline.__all__, "StrandlineError", "Driver", "SourceReader"):
        assert re.search(rf"^##+ {name}$", page, re.MULTILINE), name


@pytest.mark.parametrize(("value", "name"), LIMITS, ids=[name for _, name in LIMITS])
def test_a_limit_is_that_of_the_code(value: str, name: str) -> None:
    """Damage: an operator sizes a system by a limit that is another one."""
    module, _, constant = name.rpartition(".")
    number, _, unit = value.replace(",", "").partition(" ")
    assert getattr(importlib.import_module(f"strandline.{module}"), constant) == int(number) * UNITS[unit]


def test_the_page_has_limits() -> None:
    """Damage: the test above finds nothing to try, and passes."""
    assert len(LIMITS) >= LIMITS_MIN


def claims() -> list[tuple[Path, str, str]]:
    """Return the links to tests of all pages."""
    pages = sorted(DOCS.rglob("*.md"))
    return [(page, link, test) for page in pages for link, test in TEST_LINK.findall(page.read_text())]


def test_each_claim_that_links_to_a_test_has_that_test() -> None:
    """Damage: a claim about Strandline is backed by nothing."""
    found = claims()
    assert len(found) >= 12
    for page, link, test in found:
        path = (page.parent / link).resolve()
        assert path.is_file(), (page.name, link)
        functions = {each.name for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)}
        assert test in functions, (page.name, link, test)


def test_each_program_of_the_comparison_is_described_by_links_to_its_own_pages() -> None:
    """Damage: what is said of another program is hearsay."""
    page = (DOCS / "comparison.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(("| |", "| ---"))]
    assert len(rows) == 8
    for row in rows[1:]:
        assert re.search(r"\]\(https://[\w./-]+\)", row), row
