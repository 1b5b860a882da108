"""An endpoint that holds a later backfill of the same data is not changed for an older one."""

from __future__ import annotations

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import FencedError
from strandline.materialize.protocol.task import Binding

SCHEMA = Schema((Column("k", "bigint"),))


def bound(resource: str = "t.v3", backfill: int = 2, incarnation: str = "m-7-shard-1") -> Binding:
    """Return a binding."""
    return Binding("v", resource, ("k",), SCHEMA, backfill=backfill, incarnation=incarnation)


def test_a_later_backfill_fences_off_an_older_one() -> None:
    """Damage: a process that slept since before a backfill drops the table that the backfill has filled."""
    with pytest.raises(FencedError, match=r"'t.v3' is filled by a later session: its backfill is 10, .* is 2"):
        bound().require_newest([bound(backfill=1).state_key, bound(backfill=10).state_key])


def test_a_collection_that_took_the_place_of_another_fences_that_off() -> None:
    """Damage: a process that slept since before a view was dropped drops the table of the view that came for it."""
    with pytest.raises(FencedError, match=r"'t.v3' is filled by a later session: its backfill is 3, .* is 2"):
        bound(incarnation="m-7-s-1@l-1").require_newest([bound(incarnation="m-7-s-2@l-1", backfill=3).state_key])


def test_what_is_older_or_of_other_data_fences_nothing_off() -> None:
    """Damage: a materialization that is made again under its name is refused for ever."""
    others = [
        bound(backfill=2),
        bound(backfill=0),
        bound(resource="t", backfill=9),
        bound(incarnation="m-8-shard-1", backfill=9),
        bound(incarnation="", backfill=9),
    ]
    bound().require_newest(each.state_key for each in others)
    of_others = [
        bound(incarnation="m-7-s-2@l-1", backfill=2),
        bound(incarnation="m-8-s-1@l-1", backfill=9),
        bound(incarnation="m-7-s-1@l-2", backfill=9),
        bound(incarnation="m-7-s-1", backfill=9),
    ]
    bound(incarnation="m-7-s-1@l-1").require_newest(each.state_key for each in of_others)
