"""What a replica reports is what a controller knows of it: also that something is there no more."""

from __future__ import annotations

from strandline.compute.sink.disagreement import Disagreement
from strandline.controller.instances.link import Heard
from strandline.frontier.antichain import EMPTY, Frontier
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import Frontiers
from strandline.instance.replica.reporting import Reporter, Standing
from strandline.persist.shard.batch import Digest

DISAGREED = Disagreement(Frontier(3), EMPTY, Digest(1, 2), Digest(3, 4))


def heard(*standings: Standing) -> Heard:
    """Return what a controller knows that was told how everything stood, time after time."""
    found, reporter = Heard(), Reporter()
    for each in standings:
        for message in reporter.changes(each):
            found.learn(decode(encode(message)), 1)
    return found


def test_a_text_that_has_changed_replaces_the_one_before() -> None:
    """Damage: `explain` shows the first window and plan of a view for ever."""
    first = Standing(counters={"step/v/rows_read": 1, "step/v/window/full": 1, "first/v/rows": 9})
    then = Standing(counters={"step/v/rows_read": 2, "step/v/window/small": 1})
    assert heard(first, then).counters == then.counters


def test_nothing_is_known_from_then_on_of_what_was_dropped() -> None:
    """Damage: what is known of a replica grows with each item that was ever dropped."""
    full = Standing(
        writes={"v": Frontier(3), "w": Frontier(3)},
        disagreements={"v": DISAGREED},
        writers={"v": ("a",), "w": ("b",)},
    )
    found = heard(full, Standing(writes={"w": Frontier(4)}, writers={"w": ("b",)}))
    assert (found.writes, found.disagreements, found.writers) == ({"w": Frontier(4)}, {}, {"w": ("b",)})


def test_what_is_there_again_is_known_again() -> None:
    """Damage: an item that was begun anew stays unknown."""
    there = Standing(writes={"v": Frontier(3)}, counters={"sink/v/rows": 1})
    found = heard(there, Standing(), there)
    assert (found.writes, found.counters) == (there.writes, there.counters)


def test_a_turn_is_reported_again_when_turns_are_counted_anew() -> None:
    """Damage: a controller waits for a turn that was done, and reported to it before it had asked for it."""
    reporter = Reporter()
    assert reporter.changes(Standing(advanced=7))
    assert not reporter.changes(Standing(advanced=7))
    reporter.begin_turns()
    assert reporter.changes(Standing(advanced=7)) == [Frontiers({}, {}, 7, ())]
