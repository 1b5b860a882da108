"""`strandline run` applies what it can of a project: what it refuses has changed nothing.  Over lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from deployed import BASE, Deployed

from strandline.controller.defining.apply import Applied, apply
from strandline.errors import DefinitionError

CONNECTED: Final[Mapping[str, str]] = {
    **BASE,
    "instances/i.sql": "CREATE INSTANCE i REPLICAS (r 'localhost:9')",
    "connections/k.sql": "CREATE CONNECTION k TO kafka (servers = 'localhost:1')",
    "sources/q.sql": "CREATE SOURCE q IN INSTANCE i (word STRING)\n"
    "FROM kafka (connection = 'k', topic = 't', format = 'csv')",
}
CIRCLE: Final = "CREATE MATERIALIZED VIEW counts AS SELECT word, n FROM many"
HALVES: Final[Mapping[str, tuple[str, str, str]]] = {
    "a column of a table, before a history": (
        "tables/notes.sql",
        "STRING)",
        "STRING, more INT) KEEP HISTORY FOR 'nonsense'",
    ),
    "an option of a source, before a history": (
        "sources/s.sql",
        "'true')",
        "'true', errors_max = '7') KEEP HISTORY FOR 'nonsense'",
    ),
    "a connection, before what refers to it": (
        "connections/k.sql",
        "1')",
        "1', sasl = 'plain', user = 'me', password = 'env:NOWHERE_TO_BE_FOUND')",
    ),
    "an option of a materialization, before its views": (
        "materializations/m.yml",
        "into: out\ncollections:",
        "into: out\noptions:\n  every: 10 minutes\ncollections:\n  - collection: nothing",
    ),
    "a table that is new, before its history": (
        "tables/new.sql",
        "",
        "CREATE TABLE new (id INT) KEEP HISTORY FOR 'nonsense'",
    ),
}
"""Definitions of which one part can be applied and another one is refused."""


def applied(found: Deployed) -> Applied:
    """Apply what can be applied."""
    return found.run(apply(found.core, found.project, whole=False))


@pytest.mark.parametrize("half", HALVES)
def test_a_definition_that_is_refused_has_changed_nothing(tmp_path: Path, half: str) -> None:
    """Damage: the log says "not applied", and a source reads with other options; its next plan shows no change."""
    found = Deployed(tmp_path, CONNECTED)
    before = dict(found.catalog.items)
    file, text, instead = HALVES[half]
    found.write({file: (tmp_path / file).read_text().replace(text, instead, 1) if text else instead})
    found.write({"tables/other.sql": "CREATE TABLE other (id INT)"})
    (refused,) = applied(found).refused
    assert refused.startswith(f"{file}: ")
    items = dict(found.catalog.items)
    assert items.pop("other").name == "other"
    assert items == before


def test_a_statement_that_is_refused_takes_nothing_back(tmp_path: Path) -> None:
    """Damage: a typing error in an interval takes back the query of hours that was to replace a view."""
    found = Deployed(tmp_path)
    found.execute("CREATE OR REPLACE MATERIALIZED VIEW many AS SELECT word, n FROM counts WHERE n > 2")
    before = dict(found.catalog.items)
    assert "__next_many" in before
    with pytest.raises(DefinitionError, match="KEEP HISTORY FOR"):
        found.execute(
            "CREATE OR REPLACE MATERIALIZED VIEW many KEEP HISTORY FOR 'nonsense' "
            "AS SELECT word, n FROM counts WHERE n > 1"
        )
    assert dict(found.catalog.items) == before


def test_each_definition_that_is_not_applied_is_said(tmp_path: Path) -> None:
    """Damage: a view is not there, or has its query of yesterday, and no line says why."""
    found = Deployed(tmp_path)
    found.write(
        {
            "tables/notes.sql": "CREATE TABLE notes (id INT, other STRING)",
            "views/x.sql": "CREATE MATERIALIZED VIEW x AS SELECT other FROM notes",
            "views/counts.sql": "CREATE MATERIALIZED VIEW counts AS SELECT other AS word, count(*) AS n FROM notes "
            "GROUP BY other",
        }
    )
    refused = applied(found).refused
    assert {each.partition(":")[0] for each in refused} == {"tables/notes.sql", "views/x.sql", "views/counts.sql"}
    assert "x" not in found.catalog.items


def test_a_mistake_is_said_once(tmp_path: Path) -> None:
    """Damage: a plan lists one typing error as two, and its reader looks for the other one."""
    found = Deployed(tmp_path)
    several = "into: out\noptions:\n  splits: foo\ncollections:\n  - collection: many\n    key: [word]\n"
    found.write({"materializations/n.yml": several})
    assert len(found.wrong()) == len(applied(found).refused) == 1
    found.write({"materializations/n.yml": "", "views/counts.sql": CIRCLE})
    assert len(found.wrong()) == len(applied(found).refused) == 1
