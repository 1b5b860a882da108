"""What the documents claim of the project as a whole, where a test can count: decisions, laws, kinds, limits."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import strandline
from strandline.cli import app
from strandline.engine.parts.aside import HELD_BYTES_MAX
from strandline.persist.shard.invariants import LAWS
from strandline.sources.readers.kafka.options import SMALL_MESSAGES_DEFAULT
from strandline.sources.readers.kafka.reader import HELD_BYTES_MAX as KAFKA_BYTES_MAX
from strandline.sources.readers.postgres.reader import SMALL_BYTES_MAX as POSTGRES_BYTES_MAX
from strandline.wiring.registry import DRIVERS, READERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGE = ROOT / "src" / "strandline"
KINDS = {PACKAGE / "sources" / "readers", PACKAGE / "materialize" / "drivers"}
"""Where kinds of readers and drivers are."""
BROKEN = re.compile(r"\b(?:require|LawBrokenError)\(\s*\"([^\"]+)\"")
"""A law that an observer of the simulation says is broken."""
LISTENS = re.compile(r"\b(?:create_server|start_server)\(")


def section(text: str, title: str) -> str:
    """Return what stands under a heading of the second level."""
    found = re.search(rf"^## {title}[^\n]*\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def documents() -> list[Path]:
    """Return every document."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def code() -> list[Path]:
    """Return every file of code."""
    return sorted(path for place in ("src", "tests", "tools") for path in (ROOT / place).rglob("*.py"))


def prose(text: str) -> str:
    """Return the comments and docstrings of a file of code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [each.string for each in tokens if each.type == tokenize.COMMENT]
    return "\n".join([*found, *(each.value.value for each in ast.walk(ast.parse(text)) if _is_docstring(each))])


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_decisions_are_numbered_one_after_the_other() -> None:
    """Damage: two decisions have one number, and a text that names it may mean either."""
    numbers = [int(each) for each in re.findall(r"^(\d+)\. ", section(ARCHITECTURE, "Decisions"), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    texts = {path.name: path.read_text() for path in (*documents(), *code())}
    named = [(name, int(each)) for name, text in texts.items() for each in re.findall(r"\b[Dd]ecisions? (\d+)", text)]
    assert [(name, number) for name, number in named if number not in numbers] == []


def listed() -> set[str]:
    """Return the laws that ARCHITECTURE.md, the tables of docs/reliability.md and `LAWS` list."""
    bold = re.findall(r"\*\*([A-Z]\d?\w?)\*\*", section(ARCHITECTURE, "What always holds"))
    rows, within = [], False
    for line in (ROOT / "docs" / "reliability.md").read_text().splitlines():
        within = line.startswith("| law | claim") or (within and line.startswith("|"))
        rows += [line.split("|")[1]] if within and not line.startswith(("| law |", "| ---")) else []
    return {*bold, *(law.name for law in LAWS), *(name.strip() for cell in rows for name in cell.split(","))}


def cited(text: str, families: str) -> set[str]:
    """Return the laws that a text names: by the letter of a family and a number, or after the word."""
    after = re.findall(r"\b[Ll]aws? ([A-Z]\d?[a-z]?)\b", text)
    return {*after, *re.findall(rf"(?<![\w.`'\"-])[{families}][1-9][a-z]?\b(?![`'\"])", text)}


def test_every_law_that_is_named_is_listed() -> None:
    """Damage: a test says that it holds a law, and no page says what that law claims."""
    known = listed()
    families = "".join(sorted({name[0] for name in known if re.fullmatch(r"[A-Z]\d\w?", name)}))
    unknown = {(law, path.name) for path in documents() for law in cited(path.read_text(), families) - known}
    for path in code():
        text = path.read_text()
        if not re.search(
            r"^from strandline(\.extras import|.* import .*\bextras\b)", text, re.MULTILINE
        ):  # of libraries
            unknown |= {(law, path.name) for law in set(BROKEN.findall(text)) - known}
        if cited(text, families) - known:  # perhaps in what is no prose: data, names
            unknown |= {(law, path.name) for law in cited(prose(text), families) - known}
    assert sorted(unknown) == []


def test_the_check_sees_the_laws_that_a_text_names() -> None:
    """A check that sees nothing would let laws be named that no page lists."""
    assert cited("Law D, and laws P1 and K3: see M1, or R2.", "PKMR") == {"D", "P1", "K3", "M1", "R2"}
    assert cited("TPC-H Q1 reads `P1`, and rows of x.M1", "PM") == set()
    assert BROKEN.findall('require("order", True, "")') == ["order"]


def test_a_kind_is_the_last_word_of_its_file() -> None:
    """Damage: who adds a reader or a driver looks for a kind where none is."""
    found = {path: ast.parse(path.read_text()).body for path in code() if KINDS & {*path.parents}}
    kinds = {path.name: body[-1] for path, body in found.items() if any(_is_kind(each) for each in body)}
    assert {name for name, last in kinds.items() if not _is_kind(last)} == set()
    readers = {path: body[-1] for path, body in found.items() if PACKAGE / "sources" / "readers" in path.parents}
    own_rooms = {path.name for path, last in readers.items() if _is_kind(last) and path.parent.name in READERS}
    assert own_rooms == {"kind.py", "reader.py"}
    assert "ends `kind.py` or `reader.py` in the reader's room, or the reader's one file" in CONTRIBUTING


def _is_kind(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "KIND"


def test_the_first_sentence_promises_systems_and_a_page_names_each() -> None:
    """Damage: a reader comes for an endpoint that no driver serves, or does not find the one that there is."""
    settings = (ROOT / "pyproject.toml").read_text()
    for text in (README, ARCHITECTURE, settings, strandline.__doc__ or "", app.with_debug.__doc__ or ""):
        found = re.search(r"\bexactly once[^.\n]*? into (the [^.\"]*)", text)
        assert found is not None, text[:80]
        assert "systems" in found[1]
    rows = re.findall(r"^\| \[?`(\w+)`", (ROOT / "docs" / "endpoints.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(DRIVERS)


def test_keyed_sources_are_looked_up_as_far_as_the_page_says() -> None:
    """Damage: an operator sizes ticks by a limit that is not there."""
    (cost,) = re.findall(r"\*\*What it costs\.\*\*.*?\n\n", (ROOT / "docs" / "sources.md").read_text(), re.DOTALL)
    assert f"{int(SMALL_MESSAGES_DEFAULT):,}".replace(",", " ") + " messages" in cost
    assert HELD_BYTES_MAX == KAFKA_BYTES_MAX == POSTGRES_BYTES_MAX
    assert f"{HELD_BYTES_MAX >> 20} MiB" in cost


def test_the_page_of_threats_names_each_way_in() -> None:
    """Damage: an operator believes that no port is open to the network, and a webhook listens there."""
    first = (ROOT / "THREAT_MODEL.md").read_text().partition("\n## ")[0]
    assert "webhook" in first
    assert "no port" not in first
    listening = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if LISTENS.search(path.read_text())
    }
    listening.remove("bench/alive.py")  # its server accepts nothing, on loopback, while it measures
    assert listening == {"console/service.py", "persist/notices.py", "sources/readers/webhook/server.py"}
    assert "`console_at`" in first
