"""A tick: one stage's failure is its own, and no stage stands still silently."""

from __future__ import annotations

import pytest
from workshop import Workshop, append

from strandline.errors import CorruptionError, Determinate, StrandlineError, Unavailable
from strandline.persist.client import PersistClient
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync

FAILURES = [StrandlineError("bad"), Determinate("disk full"), CorruptionError("damaged"), KeyError("a bug of ours")]


@pytest.fixture
def shop() -> Workshop:
    """Two stages that copy ``t``, and one that copies the first of them."""
    shop = Workshop()
    for name, of in (("v", "t"), ("w", "t"), ("x", "v")):
        shop.copy(name, of)
    shop.write(("a", 1))
    assert not shop.tick().failed
    return shop


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_stage_that_fails_stops_only_what_reads_it(shop: Workshop, error: Exception) -> None:
    """Damage: one view with a bug stops all the others."""
    shop.write(("b", 1))
    shop.engine.fails.append(error)
    report = shop.tick()
    assert report.failed == {"v": error}
    assert shop.contents("w") == {"a": 1, "b": 1}
    assert "waits for 'v'" in report.problem("x")

    report = shop.tick()
    assert not report.failed
    assert not report.standing
    assert shop.contents("v") == shop.contents("x") == {"a": 1, "b": 1}


def test_an_error_that_is_not_ours_is_a_problem_with_its_type(shop: Workshop) -> None:
    """Damage: `status` shows an empty problem, or none."""
    shop.write(("b", 1))
    shop.engine.fails.append(KeyError("k"))
    assert shop.tick().problem("v") == "unexpected KeyError: 'k'"


def test_idle_stages_go_on_after_an_outage_and_are_named_during_it(shop: Workshop) -> None:
    """Damage: a quiet view believes that it has moved, and never moves again."""
    shop.write()
    shop.stores.away = True
    report = shop.tick()
    assert set(report.failed) == {"v", "w", "x"}
    assert all(isinstance(error, Unavailable | StrandlineError) for error in report.failed.values())
    shop.stores.away = False
    report = shop.tick()
    assert not report.failed
    assert not report.standing
    assert shop.contents("x") == {"a": 1}


def test_a_stage_whose_input_knows_nothing_yet_says_so() -> None:
    """Damage: a view over a source that never came up looks healthy."""
    shop = Workshop()
    shop.copy("v")
    shop.upper = 5
    assert "waits for 't'" in shop.tick().problem("v")


def test_no_change_evaluates_nothing(shop: Workshop) -> None:
    """Damage: an idle tick costs a job for each view."""
    before = shop.engine.evaluated
    shop.write()
    assert set(shop.tick().moved) == {"v", "w", "x"}
    assert shop.engine.evaluated == before


def test_an_idle_stage_that_another_writer_moved_looks_at_its_shard(shop: Workshop) -> None:
    """Damage: rows of another writer stay in the view, because nothing changed upstream."""
    other = shop.writer("w", client=PersistClient(shop.clock, CountingIds("f"), shop.blob, shop.stores, grace_ms=None))
    run_sync(append(shop.engine, other, shop.upper, shop.upper + 1, [("wrong", 1)]))
    shop.write(upper=shop.upper + 1)
    shop.tick()
    shop.write()
    shop.tick()
    assert shop.contents("w") == {"a": 1}


def vandalised(shop: Workshop) -> None:
    """Let another writer reach the tick's time in ``v`` first, as ``x`` is moved over it in the same flush."""
    other = shop.writer("v", client=PersistClient(shop.clock, CountingIds("f"), shop.blob, shop.stores, grace_ms=None))
    run_sync(append(shop.engine, other, shop.upper, shop.upper + 1, [("wrong", 1)]))
    shop.write()
    assert set(shop.tick().moved) == {"v", "w", "x"}


def test_what_was_moved_over_another_writers_rows_below_takes_no_withdrawal_for_its_own(shop: Workshop) -> None:
    """Damage: a view over a view holds a row -1 times, for ever.  Found by the world of the whole system."""
    vandalised(shop)
    for _ in range(2):
        shop.write()
        shop.tick()
        assert shop.contents("v") == shop.contents("x") == {"a": 1}


@pytest.mark.parametrize("fails", [False, True])
def test_nor_does_the_next_process_though_its_first_try_may_fail(shop: Workshop, fails: bool) -> None:
    """Damage: the same, after a crash right behind the flush."""
    vandalised(shop)
    for name, of in (("v", "t"), ("x", "v")):
        shop.copy(name, of)
    shop.write()
    shop.engine.fails += [Unavailable("an executor was lost")] if fails else []
    shop.tick()
    shop.write()
    shop.tick()
    assert shop.contents("v") == shop.contents("x") == {"a": 1}


def test_a_stage_that_was_opened_before_its_input_is_stepped_after_it(shop: Workshop) -> None:
    """Damage: a view whose input could not be opened at first is one tick behind it for ever, and says so for ever.

    Found by the world of the whole system.
    """
    shop.runs = dict(reversed(shop.runs.items()))
    shop.write(("b", 1))
    report = shop.tick()
    assert not report.standing
    assert shop.contents("x") == {"a": 1, "b": 1}


def test_a_first_step_that_failed_is_made_where_the_inputs_are_now() -> None:
    """Damage: a view whose first step meets a lost executor breaks an assertion at every tick, until a restart.

    Found by the world of the whole system.
    """
    shop = Workshop()
    shop.copy("v")
    shop.write(("a", 1))
    shop.engine.fails.append(Unavailable("an executor was lost"))
    assert set(shop.tick().failed) == {"v"}
    shop.write(("b", 1))
    assert not shop.tick().failed
    assert shop.contents("v") == {"a": 1, "b": 1}
