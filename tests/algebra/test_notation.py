"""A text is a value of a type, or none: as the table says, and never by a guess."""

from __future__ import annotations

import pytest
from tests.engine.messages.notations import BAD, TEXTS

from strandline.algebra import notation, types


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_is_the_value_that_its_table_says(kind):
    """Damage: a simulation decodes what no environment does, or the other way round."""
    parsed = types.parse("", kind)
    found = {text: notation.value(parsed, text) for text in TEXTS[kind]}
    assert {text: repr(value) for text, value in found.items()} == {
        text: repr(None if value == BAD else value) for text, value in TEXTS[kind].items()
    }
