"""What is proposed is a statement that means what was found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import Column, Schema
from strandline.controller.defining.proposals import Upstream, proposed
from strandline.controller.language.statements import CreateSource, CreateSourceTable, parse
from strandline.sources.kinds import Discovered

ONE = Schema((Column("a b", "int"),))
TEXTS = st.text(min_size=1).filter(lambda text: text.isprintable())


@given(st.lists(TEXTS, min_size=1, max_size=4, unique=True), TEXTS)
def test_every_proposal_can_be_parsed_and_says_what_was_found(names: list[str], text: str) -> None:
    """Damage: a table's name or a path with a quote in it makes another statement than the one that was meant."""
    found = [Discovered(name, ONE, {"path": text}, "two\nlines; -- x") for name in names]
    read = [parse(each) for each in proposed(Upstream("files", {}, tables=False), found, "s")]
    assert [(each.options, each.columns) for each in read if isinstance(each, CreateSource)] == [
        ({"path": text}, "`a b` int")
    ] * len(names)
    head, *tables = [parse(each) for each in proposed(Upstream("pg", {"connection": text}, tables=True), found, "s")]
    assert isinstance(head, CreateSource)
    assert (head.columns, head.options) == ("", {"connection": text})
    assert [each.reference for each in tables if isinstance(each, CreateSourceTable)] == names
    assert len({each.name for each in (head, *tables)}) == len(names) + 1  # type: ignore[union-attr]


def test_two_things_of_one_name_get_two_names() -> None:
    """Damage: the second of the proposed statements is refused."""
    found = [Discovered(name, ONE) for name in ("public.Orders", "sales.orders", "orders", "s")]
    texts = proposed(Upstream("pg", {}, tables=True), found, "s")
    assert [text.split()[2] for text in texts] == ["s", "orders", "sales_orders", "orders_2", "s_2"]
