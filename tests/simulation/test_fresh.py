"""`make fresh` plays every world, and says what a history broke."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laws.broken import LawBrokenError
from worlds import fresh
from worlds.campaign import ASKED_FOR

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")


def test_every_campaign_has_its_world_there() -> None:
    """Damage: thousands of fresh histories are said to have been played over all worlds, and one was left out."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    campaigns = {name for text in texts for name in re.findall(r'mixed\("([\w-]+)"', text)}
    replaced = {"altered", "replaced"}  # by their names in a table
    assert fresh.WORLDS.keys() == campaigns | replaced


def test_a_history_of_each_world_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: a world cannot be played, and that is seen when the night is over."""
    assert fresh.main([str(len(fresh.WORLDS)), "--seed", "7"]) == 0
    said = capsys.readouterr().out
    for name in fresh.WORLDS:
        assert f"FIGURE fresh.{name} histories=1,from=7,broken=0," in said


def test_a_broken_law_is_said_with_its_seed_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: a finding is lost in a night's output, or ends the night."""

    def breaks(seed: int) -> None:
        raise LawBrokenError("K2", f"something at {seed}")

    monkeypatch.setattr(fresh, "WORLDS", {"tables": breaks})
    assert fresh.main(["2", "--seed", "3", "--world", "tables"]) == 1
    said = capsys.readouterr().out
    assert "BROKEN tables 3: law K2: " in said
    assert "make fresh WORLD=tables SEED=4 N=1" in said
    assert "2 of 2 histories, 2 broken" in said
    assert "FIGURE fresh.tables histories=2,from=3,broken=2," in said
