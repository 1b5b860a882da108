"""Forms of values: what becomes of floats."""

from __future__ import annotations

from strandline.algebra.types import Array, Atom, Decimal, Struct
from strandline.engine.frames.forms import has_floats, normalised


def test_only_types_with_floats_pay_for_normalising() -> None:
    """Damage: every staged string is copied for nothing."""
    plain = Array(Struct((("a", Atom("string")), ("b", Decimal(3, 1)))))
    assert not has_floats(plain)
    assert normalised("`c`", plain) == "`c`"
    assert has_floats(Array(Struct((("a", Atom("float")),))))
