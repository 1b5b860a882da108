"""The catalog is one value, which only a process that knows all of it changes."""

from __future__ import annotations

import pytest

from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, Materialization, View
from strandline.errors import ConfigError
from strandline.persist.handles.register import Register
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync


def test_a_catalog_of_a_newer_format_is_neither_read_nor_written_back() -> None:
    """Damage: an older version that is started by mistake takes away what only the newer one knows of an item."""
    register = Register(KEY, HandClock(), CountingIds(), MemoryConsensus())
    body = b'{"format": 2, "epoch": 3, "items": {}, "new": [1]}'
    run_sync(register.update(lambda _: body))
    store = CatalogStore(register)
    for act in (store.read(), store.succeed(lambda _: pytest.fail("it was admitted"))):
        with pytest.raises(ConfigError, match="catalog is kept in format 2"):
            run_sync(act)
    assert run_sync(register.read()) == body


def test_what_no_item_keeps_is_dropped_and_nothing_else() -> None:
    """Damage: a view loses the stage that it shares with one that was dropped; or a stage is kept for ever."""
    one = View("one", (), "s-1", "", (), {"joined": "s-9"}, {})
    two = View("two", (), "s-2", "", (), {"joined": "s-9"}, {})
    task = Materialization("task", "duckdb", {}, (), "m-1")
    both = Catalog(items={"one": one, "two": two, "task": task})
    assert both.having({"two": two}).dropped == ("s-1",)
    assert both.having({"two": two}).having({}).dropped == ("s-1", "s-2", "s-9")
    replanned = View("two", (), "s-2", "", (), {"summed": "s-10"}, {})
    assert both.having({"one": one, "two": replanned}).dropped == ()
    assert Catalog(items={"two": two}).having({"two": replanned}).dropped == ("s-9",)
