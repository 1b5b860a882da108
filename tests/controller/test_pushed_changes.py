"""CREATE MATERIALIZATION … OPTIONS (delta 'true'): what an endpoint is given instead of a table.  Over lists."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest
from contents_of import contents

from strandline.bench.environment import ROWS, _change, _define, over_lists
from strandline.controller.asking.verification import verify_endpoint
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Materialization
from strandline.errors import DefinitionError, InvalidUsage
from strandline.materialize.protocol.messages import DELETE, EXISTS, Request, Response, Store
from strandline.materialize.protocol.task import item_of
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.testing.simulation.kernel import run_sync


class Pushed(KeyValueSession):
    """Keeps what is pushed."""

    def answers(self, message: Request) -> list[Response]:
        if isinstance(message, Store):
            rows = self.endpoint.tables.setdefault(self.bindings[message.binding].resource, {})
            for row in message.rows.to_pylist():
                rows[str(len(rows))] = row
            return []
        return super().answers(message)


@pytest.fixture
def endpoint() -> Endpoint:
    """Return the endpoint of this test."""
    return Endpoint()


@pytest.fixture
def core(endpoint: Endpoint) -> Core:
    """Return an environment over lists with a table, a source and three views."""
    assembly = replace(over_lists().assembly, drivers=lambda *_: MemoryDriver(endpoint, Pushed))
    core = run_sync(Core.open(assembly, Config(), Mode.FULL))
    run_sync(_define(core))
    return core


def make(core: Core, text: str) -> None:
    """Create a materialization."""
    run_sync(create(core, cast("Any", parse(f"CREATE MATERIALIZATION out INTO memory {text}"))))


def test_the_diffs_that_are_pushed_add_up_to_the_view(core: Core, endpoint: Endpoint) -> None:
    """Damage: a consumer of changes keeps another table than the view."""
    make(core, "OPTIONS (delta 'true', diffs 'true') AS highest")
    for n in (0, 1, ROWS, ROWS + 1):
        run_sync(_change(core, n))
        run_sync(core.tick())
    sums: Counter[str] = Counter()
    for row in endpoint.rows("highest"):
        shown = {name: value for name, value in row.items() if not name.startswith("__")}
        sums[str(shown)] += row["__diff"]
    assert +sums == contents(core, "highest")
    assert 0 in sums.values(), "something went, too"


def test_without_diffs_each_key_that_changed_comes_with_its_last_row(core: Core, endpoint: Endpoint) -> None:
    """Damage: a consumer that keeps the last row of each key keeps another table than the view."""
    make(core, "OPTIONS (delta 'true', times 'true') AS highest KEY (grp)")
    for n in (0, 1, ROWS, ROWS + 1):
        run_sync(_change(core, n))
        run_sync(core.tick())
    last: dict[Any, dict[str, Any]] = {}
    for row in endpoint.rows("highest"):
        assert row.pop("__time") is not None
        gone, _ = row.pop(DELETE), row.pop(EXISTS)
        if gone:
            del last[row["grp"]]
        else:
            last[row["grp"]] = row
    assert {str(row): 1 for row in last.values()} == contents(core, "highest")


def test_a_collection_without_a_key_can_be_pushed_as_changes_and_not_be_kept_equal(core: Core) -> None:
    """Damage: append-only collections reach no endpoint; or a table is kept without a key."""
    with pytest.raises(DefinitionError, match=r"say which columns .* or push its changes: OPTIONS \(delta 'true'\)"):
        make(core, "AS items")
    make(core, "OPTIONS (delta 'true', diffs 'true') AS items")
    item = core.catalog.find("out")
    assert isinstance(item, Materialization)
    (binding,) = spec_of(item, core.catalog).bindings
    assert (binding.key, binding.delta, binding.diffs, binding.times) == ((), True, True, False)
    assert item_of(binding.state_key) == item.id


@pytest.mark.parametrize("option", ["diffs", "times"])
def test_a_table_that_is_kept_equal_has_no_diffs_and_no_times(option: str, core: Core) -> None:
    """Damage: an option does nothing, and says nothing."""
    with pytest.raises(DefinitionError, match="only what is pushed as changes has times and diffs"):
        make(core, f"OPTIONS ({option} 'true') AS highest KEY (grp)")


def test_what_is_pushed_is_not_verified_as_a_table(core: Core) -> None:
    """Damage: `verify` reports differences where there are none to be."""
    make(core, "OPTIONS (delta 'true') AS highest KEY (grp)")
    run_sync(_change(core, 0))
    run_sync(core.tick())
    with pytest.raises(InvalidUsage, match="'out' pushes changes to 'highest'"):
        run_sync(verify_endpoint(core, "out"))
