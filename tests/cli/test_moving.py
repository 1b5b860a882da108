"""The progress and the rate of a long transaction are reported."""

from __future__ import annotations

from strandline.cli.terminal.reporting import Pace, Pacer
from strandline.materialize.status import Counts, Moving, Status


def status(phase: str, moving: Moving, name: str = "out") -> Status:
    """Return what a task says."""
    return Status(name, phase, 0, 0, Counts(), moving, (), None)


def test_rows_and_rate_are_reported_regularly() -> None:
    """Damage: a first sync of an hour says nothing, or a line for each of its thousands of batches."""
    clock = [0.0]
    pacer = Pacer(lambda: clock[0], pause_s=10)
    reported: list[Pace] = []
    for read in range(0, 5_001, 100):
        pace = pacer.pace(status("Extending", Moving(read=read, about=5_000)))
        reported += [] if pace is None else [pace]
        clock[0] += 1
    assert [(pace.done, pace.rows_per_s) for pace in reported] == [(n * 1_000, 100) for n in (1, 2, 3, 4, 5)]
    assert str(reported[0]) == "out: read 1,000 of about 5,000 rows (20 %), 100 rows/s"


def test_sending_and_other_tasks_have_a_rate_of_their_own() -> None:
    """Damage: the rate of what is sent is an average over the minutes in which nothing was."""
    clock = [0.0]
    pacer = Pacer(lambda: clock[0], pause_s=0.5)
    pacer.pace(status("Extending", Moving(read=10, about=10)))
    clock[0] = 100.0
    assert pacer.pace(status("Storing", Moving(read=10, about=10, sent=2))) is None
    assert pacer.pace(status("Storing", Moving(read=10, about=10, sent=2), name="other")) is None
    clock[0] = 102.0
    pace = pacer.pace(status("Storing", Moving(read=10, about=10, sent=8)))
    assert (pace.verb, pace.done, pace.about, pace.rows_per_s) == ("sent", 8, 10, 4)
    assert pacer.pace(status("Idle", Moving())) is None
