"""A tick: one stage's failure is its own, and no stage stands still silently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from workshop import Workshop, spoil, spoil_and_see

from strandline.compute.tick import _Wave
from strandline.errors import CorruptionError, Determinate, StrandlineError, Unavailable
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
    appends = {name: run.sink.counters.appends for name, run in shop.runs.items()}
    shop.write()
    assert set(shop.tick().moved) == {"v", "w", "x"}
    assert shop.engine.evaluated == before
    assert all(run.sink.counters.appends == appends[name] + 1 for name, run in shop.runs.items())


def test_nor_after_a_restart(shop: Workshop) -> None:
    """Damage: each restart costs a job for each view, though nothing has changed."""
    shop.write()
    shop.tick()
    begun_anew(shop)
    test_no_change_evaluates_nothing(shop)


def test_an_idle_stage_that_another_writer_moved_looks_at_its_shard(shop: Workshop) -> None:
    """Damage: rows of another writer stay in the view, because nothing changed upstream."""
    run_sync(spoil(shop, "w"))
    shop.write(upper=shop.upper + 1)
    shop.tick()
    shop.write()
    shop.tick()
    assert shop.contents("w") == {"a": 1}


def test_rows_of_another_writer_that_come_between_a_look_and_the_flush_are_not_certified(shop: Workshop) -> None:
    """Damage: a quiet view keeps the rows, and vouches for them: as other stages step, a merge has heard of them."""
    run_sync(spoil_and_see(shop, "v"))
    shop.engine.meanwhile.append(partial(spoil_and_see, shop, "w"))
    shop.write(upper=shop.upper + 2)
    assert "w" not in shop.tick().moved
    shop.write()
    assert shop.tick().stepped.keys() >= {"w"}
    assert shop.contents("w") == shop.contents("v") == shop.contents("x") == {"a": 1}


def vandalised(shop: Workshop) -> None:
    """Let another writer be in ``v`` first, as ``x`` is moved over it in the same flush."""
    run_sync(spoil(shop, "v"))
    shop.write()
    assert set(shop.tick().moved) == {"v", "w", "x"}


def test_what_was_moved_over_another_writers_rows_below_takes_no_withdrawal_for_its_own(shop: Workshop) -> None:
    """Damage: a view over a view holds a row -1 times, for ever.  Found by the world of the whole system."""
    vandalised(shop)
    for _ in range(2):
        shop.write()
        shop.tick()
        assert shop.contents("v") == shop.contents("x") == {"a": 1}


def test_nor_if_another_stage_of_its_level_needs_the_flush_before(shop: Workshop) -> None:
    """Damage: the same: what is below is moved in one flush, what is above in a later one, and takes it for moved.

    Found by the world of the whole system.
    """
    shop.copy("y", "w")  # it is fresh, and reads what is quiet
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


def begun_anew(shop: Workshop) -> None:
    """Let the process crash, and another one open the stages."""
    for name, run in list(shop.runs.items()):
        shop.copy(name, *run.inputs)


def test_nor_does_the_one_after_a_crash_between_the_correction_below_and_the_step_above(shop: Workshop) -> None:
    """Damage: the same: what is below is certified again, and what is above is trusted for a move over other rows."""
    vandalised(shop)
    begun_anew(shop)
    shop.write()
    shop.step("v")  # it is audited, and certified again; then the process crashes
    begun_anew(shop)
    for _ in range(2):
        shop.write()
        shop.tick()
        assert shop.contents("v") == shop.contents("x") == {"a": 1}


def test_nor_does_what_is_two_above_if_its_move_alone_came_through(shop: Workshop) -> None:
    """Damage: the same, of rows that the stage between takes over after the one above it was moved."""
    shop.copy("y", "x")
    shop.write()
    shop.tick()
    run_sync(spoil(shop, "v"))
    shop.write()
    shop.stores.only = {"y"}
    assert {"v", "x", "y"} <= shop.tick().failed.keys()
    shop.stores.only, shop.stores.away = None, False
    for name in ("v", "x"):
        begun_anew(shop)
        shop.write()
        shop.step(name)
    begun_anew(shop)
    for _ in range(2):
        shop.write()
        shop.tick()
        assert shop.contents("v") == shop.contents("x") == shop.contents("y") == {"a": 1}


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


def staged_at_once(shop: Workshop, meanwhile: Callable[[], Awaitable[None]] | None = None) -> list[int]:
    """Return how many batches each call of ``stage_many`` is asked for from now on; ``meanwhile`` happens first."""
    asked: list[int] = []
    stage_many = shop.engine.stage_many

    async def counted(wanted: Any) -> Any:
        asked.append(len(wanted))
        if meanwhile is not None and len(asked) == 1:
            await meanwhile()
        return await stage_many(wanted)

    shop.engine.stage_many = counted  # type: ignore[method-assign]
    return asked


def test_what_only_copies_a_draft_is_staged_with_it(shop: Workshop) -> None:
    """Damage: a view above an aggregate costs a job of its own at each tick."""
    asked = staged_at_once(shop)
    shop.write(("b", 1))
    report = shop.tick()
    assert asked == [3]
    assert set(report.stepped) == {"v", "w", "x"}
    assert shop.contents("x") == shop.contents("v") == {"a": 1, "b": 1}


def test_it_begins_again_if_another_writer_was_first_below(shop: Workshop) -> None:
    """Damage: a view holds what the stage below it drafted and never appended."""
    asked = staged_at_once(shop, partial(spoil, shop, "v"))
    shop.write(("b", 1))
    shop.tick()
    assert asked == [3, 1]
    assert shop.contents("x") == shop.contents("v") == {"a": 1, "wrong": 1}
    shop.write()
    shop.tick()
    assert shop.contents("x") == shop.contents("v") == {"a": 1, "b": 1}


def test_that_law_sees_a_bug_that_is_planted(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage above is appended, whatever became of the one below."""
    monkeypatch.setattr(_Wave, "_step_behind", _Wave._step)
    with pytest.raises(AssertionError):
        test_it_begins_again_if_another_writer_was_first_below(shop)


def test_it_waits_if_the_stage_below_fails(shop: Workshop) -> None:
    """Damage: the same, after a store that does not answer."""

    async def away() -> None:
        shop.stores.away = True

    staged_at_once(shop, away)
    shop.write(("b", 1))
    assert not shop.tick().stepped
    shop.stores.away = False
    shop.write()
    shop.tick()
    assert shop.contents("x") == shop.contents("v") == {"a": 1, "b": 1}
