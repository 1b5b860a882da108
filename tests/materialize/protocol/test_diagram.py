"""The page in docs says what the table says."""

from __future__ import annotations

from pathlib import Path

from strandline.materialize.protocol.diagram import page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "materialize-protocol.md"


def test_the_page_is_printed_from_the_table() -> None:
    """Damage: a driver's author builds against a protocol that is no longer spoken."""
    assert PAGE.read_text() == page(), (
        "run: python -m strandline.materialize.protocol.diagram > docs/materialize-protocol.md"
    )
