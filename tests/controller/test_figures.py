"""What is shown of an environment's items to people who look."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed import Deployed

from strandline.controller.introspection.definition import definition
from strandline.controller.location.items import Connection, Item, Materialization, SharedSource, Source, SourceTable
from strandline.controller.observing.figures import figures, without_secrets

SECRETS = {"password": "hunter2", "url": "postgresql://me:hunter2@h/d", "token": "env:TOKEN", "host": "h"}


@pytest.mark.parametrize(
    "item",
    [
        Connection("c", "postgres", SECRETS),
        Source("s", (("id", "int"),), "s", "kafka", SECRETS, "r", "p"),
        SharedSource("b", "postgres", SECRETS, "r", "p"),
        SourceTable("t", (("id", "int"),), "s", "b", "public.t", SECRETS),
        Materialization("m", "postgres", SECRETS, (), "m-1"),
    ],
)
def test_a_definition_that_is_shown_holds_no_secret(item: Item) -> None:
    """Damage: a password that was given under an innocent name stands on a page that every user can read."""
    text = definition(without_secrets(item))
    assert "hunter2" not in text
    assert "'env:TOKEN'" in text
    assert "'h'" in text


def test_what_was_done_for_an_item_stands_beside_it(tmp_path: Path) -> None:
    """Damage: the console shows a view's work at another one, or that nothing was ever done."""
    at = Deployed(tmp_path)
    at.note("a", "a", "b")
    items = figures(at.core)["items"]
    assert items["counts"]["done"]["rows"] > items["many"]["done"]["rows"] == 1
    assert items["notes"]["done"] == {}
    assert items["s"]["done"]["error_records"] == 0
