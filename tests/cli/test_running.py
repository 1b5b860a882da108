"""`strandline run` goes on when a store fails a tick, and ends on request."""

from __future__ import annotations

import pytest

from strandline.cli.running import Report, Stop, Wanted, _ticks
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.output import Output
from strandline.errors import CorruptionError, Determinate, Indeterminate, StrandlineError, Unavailable


class Ticking:
    """An environment whose first tick fails with ``error``; the next is complete at 7."""

    def __init__(self, error: StrandlineError) -> None:
        self.errors = [error]

    def tick(self) -> int:
        if self.errors:
            raise self.errors.pop()
        return 7

    def progress(self) -> dict[str, object]:
        return {"sources": {}, "steps": [], "problems": {}, "notices": {}}


def ran(error: StrandlineError, *, once: bool = False) -> Exit:
    """Run until 7 is complete."""
    wanted = Wanted(once=once, until=7, take_over=False, tick_ms=1)
    return _ticks(Ticking(error), wanted, Stop(), Report(Output(json=True)))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [Determinate("the disk is full"), Indeterminate("no answer"), Unavailable("gone")])
def test_a_store_that_fails_a_tick_is_asked_at_the_next_one(error: StrandlineError) -> None:
    """Damage: a disk that is full for a minute ends `strandline run`."""
    assert ran(error) is Exit.OK
    with pytest.raises(type(error)):
        ran(error, once=True)


def test_what_no_tick_mends_ends_the_run() -> None:
    """Damage: every tick meets a damaged object, and `run` does not report it."""
    with pytest.raises(CorruptionError):
        ran(CorruptionError("damaged"))
