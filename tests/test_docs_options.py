"""docs/options.md is what the readers, drivers and stores declare."""

from __future__ import annotations

from pathlib import Path

from strandline.wiring.registry import page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "options.md"


def test_every_option_is_in_the_docs_and_every_option_in_the_docs_exists() -> None:
    """Damage: an option that no reader finds, or one that is refused as the page shows it."""
    assert PAGE.read_text() == page() + "\n", "write it anew: strandline options > docs/options.md"
