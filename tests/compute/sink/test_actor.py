"""The sink: what it believes of its shard, and what it does when it cannot know."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
from workshop import SCHEMA, Workshop, append, spoil_and_see

from strandline.compute.sink.actor import Sink
from strandline.errors import FencedError, Indeterminate, StrandlineError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync


@pytest.fixture
def shop() -> Workshop:
    """A workshop with a stage ``v`` that copies ``t``, and one row in both."""
    shop = Workshop()
    shop.copy("v")
    shop.write(("a", 1))
    shop.step()
    return shop


class Suspends:
    """Awaited once: the driver of the coroutine decides its outcome."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


def test_a_view_goes_on_after_an_outage_longer_than_any_patience(shop: Workshop) -> None:
    """Damage: the append and the reopening fail, and from then on every step reports success and nothing moves."""
    shop.write(("b", 1))
    shop.stores.away = True
    for _ in range(3):
        with pytest.raises((Unavailable, Indeterminate)):
            shop.step()
    shop.stores.away = False

    assert shop.step() is not None
    assert shop.contents() == {"a": 1, "b": 1}


def test_an_append_whose_answer_was_lost_is_neither_repeated_nor_forgotten(shop: Workshop) -> None:
    """Damage: the rows of a step are there twice, or the view stands still for ever."""
    shop.write(("b", 1))
    shop.stores.lost = 1
    with pytest.raises(Indeterminate):
        shop.step()
    shop.stores.away = False

    shop.step()
    assert shop.contents() == {"a": 1, "b": 1}


def test_a_step_that_is_cancelled_in_its_append_leaves_nothing_behind(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a sibling fails, the tick cancels this step, and the view never moves again."""
    shop.write(("b", 1))

    async def wait(*_: object) -> None:
        await Suspends()

    with monkeypatch.context() as patched:
        patched.setattr(shop.stores, "compare_and_set", wait)
        step = shop.runs["v"].step(Frontier(shop.upper))
        step.send(None)
        with pytest.raises(asyncio.CancelledError):
            step.throw(asyncio.CancelledError())

    shop.step()
    assert shop.contents() == {"a": 1, "b": 1}


@pytest.mark.parametrize("error", [Unavailable("gone"), StrandlineError("bad"), KeyError("a bug of ours")])
def test_a_step_that_failed_before_its_append_is_made_again(shop: Workshop, error: Exception) -> None:
    """Damage: the updates of the failed step are missing from the view."""
    shop.write(("b", 1))
    shop.engine.fails.append(error)
    with pytest.raises(type(error)):
        shop.step()

    shop.step()
    assert shop.contents() == {"a": 1, "b": 1}


def test_what_another_writer_appended_is_withdrawn_by_the_next_append(shop: Workshop) -> None:
    """Damage: a row that the view does not desire stays in it (law K3)."""
    foreign = shop.writer(
        "v", client=PersistClient(shop.clock, CountingIds("f"), shop.blob, shop.stores, grace_ms=None)
    )
    run_sync(append(shop.engine, foreign, shop.upper, shop.upper + 1, [("wrong", 2), ("a", -1)]))
    shop.write(("b", 1), upper=shop.upper + 1)
    shop.step()
    shop.write()
    shop.step()
    assert shop.contents() == {"a": 1, "b": 1}
    assert shop.runs["v"].sink.counters.conflicts == 1


def test_what_another_writer_appends_while_the_sink_looks_is_withdrawn_too(shop: Workshop) -> None:
    """Damage: the sink appends behind rows that it has not seen, and vouches for them: a merge had heard of them."""
    run_sync(spoil_and_see(shop, "v"))
    shop.engine.meanwhile += [partial(spoil_and_see, shop, "v")] * 2
    shop.write(("b", 1), upper=shop.upper + 4)
    shop.step()
    assert not shop.engine.meanwhile
    assert shop.contents() == {"a": 1, "b": 1}
    assert shop.runs["v"].sink.counters.conflicts == 3


def test_a_fenced_sink_stops_and_appends_nothing(shop: Workshop) -> None:
    """Damage: a zombie writes over its successor."""
    successor = PersistClient(shop.clock, CountingIds("s"), shop.blob, shop.stores, grace_ms=None)
    shop.copy("v", client=successor, epoch=2)
    shop.write(("b", 1))
    with pytest.raises(FencedError):
        shop.step()
    assert shop.reader("v").state.upper == Frontier(shop.upper - 1)


def test_a_certificate_that_describes_the_shard_spares_the_audit(shop: Workshop) -> None:
    """Damage: every restart recomputes every view."""
    again = Sink(shop.engine, shop.writer("v"), SCHEMA, "copy of t")
    run_sync(again.open())
    assert again.desired == shop.upper


@pytest.mark.parametrize("fingerprint", ["another plan", ""])
def test_a_certificate_of_another_dataflow_is_not_believed(shop: Workshop, fingerprint: str) -> None:
    """Damage: a view keeps the contents of its former definition."""
    again = Sink(shop.engine, shop.writer("v"), SCHEMA, fingerprint)
    run_sync(again.open())
    assert again.desired is None


def test_a_first_step_whose_start_was_lost_starts_again(shop: Workshop) -> None:
    """Damage: a view that was created during an outage never holds anything."""
    shop.copy("w")
    shop.stores.lost = 1
    with pytest.raises(StrandlineError):
        shop.step("w")
    shop.stores.away = False
    shop.write(("b", 1))
    shop.step("w")
    assert shop.contents("w") == {"a": 1, "b": 1}
