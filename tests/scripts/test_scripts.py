"""Every script is answered as it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversation import Conversation, blocks, rewrite

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_answered_as_it_says(path: Path, place: object, request: pytest.FixtureRequest) -> None:
    """Damage: what happened to others, or to us before, happens again."""
    conversation = Conversation(place)
    said = list(blocks(path.read_text()))
    answers = [conversation.answer(block.said) for block in said]
    if request.config.getoption("--rewrite", default=False):
        rewrite(path, answers)
    else:
        assert answers == [block.answer for block in said]
    assert not place.plan, "an attempt whose fate the script gives was not made"  # type: ignore[attr-defined]
    assert not place.clock.meanwhile, "no command waited"  # type: ignore[attr-defined]


def test_scripts_are_not_lost() -> None:
    """Damage: a regression's script disappears, and the regression comes back."""
    assert len(SCRIPTS) >= 12
