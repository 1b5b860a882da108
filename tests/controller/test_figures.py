"""What is shown of an environment's items to people who look."""

from __future__ import annotations

import pytest

from strandline.controller.introspection.definition import definition
from strandline.controller.location.items import Connection, Item, Materialization, SharedSource, Source, SourceTable
from strandline.controller.observing.figures import without_secrets

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
