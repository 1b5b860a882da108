"""Column types as text: what is read, what is refused."""

from __future__ import annotations

import pytest

from strandline.algebra.types import Array, Atom, Decimal, Struct, parse
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
        ("struct<select:int,order:string>", Struct((("select", Atom("int")), ("order", Atom("string"))))),
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
        "array<struct<k:int,K:string>>",
    ],
)
def test_what_cannot_be_kept_is_refused_and_its_column_named(text: str) -> None:
    """Damage: rows are stored that have several binary forms, or none."""
    with pytest.raises(DefinitionError, match="'the column'"):
        parse("the column", text)
