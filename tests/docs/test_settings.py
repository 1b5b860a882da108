"""Each piece of `strandline.yml` that a page shows is accepted as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.docs.walk import DOCS, blocks

from strandline.controller.defining.project.files import load
from strandline.controller.location.config import Config

SHOWN = [
    pytest.param(block.text, id=f"{path.stem} {block.line}")
    for path in sorted(DOCS.rglob("*.md"))
    for block in blocks(path.read_text())
    if block.language == "yaml" and block.title in {None, "strandline.yml"}
]


@pytest.mark.parametrize("text", SHOWN)
def test_settings_that_are_shown_are_accepted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an operator copies a setting of a page, and `strandline run` calls it unknown."""
    for name in ("STRAND_CONSENSUS", "STRANDLINE_TOKEN", "STRAND_TOKEN"):
        monkeypatch.setenv(name, "postgresql://strand@db/strand")
    said = yaml.safe_load(text)
    (tmp_path / "strandline.yml").write_text(text if "location" in said else f"location: data\n{text}")
    Config(**load(tmp_path).config)


def test_pages_show_settings() -> None:
    """Damage: the test above finds nothing to try, and passes."""
    assert len(SHOWN) >= 8
