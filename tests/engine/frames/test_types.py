"""Column types as text: what is read, what is refused, what becomes of floats."""

from __future__ import annotations

import pytest

from strandline.engine.frames.types import Array, Atom, Decimal, Struct, has_floats, normalised, parse
from strandline.errors import DefinitionError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("INT", Atom("int")),
        ("long", Atom("bigint")),
        ("timestamp_ntz", Atom("timestamp_ntz")),
        ("decimal(5,0)", Decimal(5, 0)),
        ("decimal", Decimal(10, 0)),
        ("array< array<float> >", Array(Array(Atom("float")))),
        ("struct<a:int,`b,:>`:string>", Struct((("a", Atom("int")), ("b,:>", Atom("string"))))),
    ],
)
def test_sparks_simple_strings_are_read(text: str, kind: object) -> None:
    """Damage: a table that Spark accepts cannot be stored."""
    assert parse("c", text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "intt",
        "int int",
        "array<int",
        "struct<a int>",
        "map<int,int>",
        "variant",
        "string collate UNICODE",
        "void",
        "char(3)",
        "decimal(x)",
        "struct<>",
    ],
)
def test_what_cannot_be_kept_is_refused_and_its_column_named(text: str) -> None:
    """Damage: rows are stored that have several binary forms, or none."""
    with pytest.raises(DefinitionError, match="'the column'"):
        parse("the column", text)


def test_only_types_with_floats_pay_for_normalising() -> None:
    """Damage: every staged string is copied for nothing."""
    plain = Array(Struct((("a", Atom("string")), ("b", Decimal(3, 1)))))
    assert not has_floats(plain)
    assert normalised("`c`", plain) == "`c`"
    assert has_floats(Array(Struct((("a", Atom("float")),))))
