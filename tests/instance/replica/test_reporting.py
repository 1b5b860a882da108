"""What a replica reports is what a controller knows of it: also that something is there no more."""

from __future__ import annotations

from strandline.compute.sink.correction import Disagreement
from strandline.controller.instances.link import Heard
from strandline.frontier import EMPTY, Frontier
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import Frontiers, Status
from strandline.instance.replica import Reporter, Standing
from strandline.persist.shard.batch import Digest
from strandline.problem import Problem, Stopped, Way, cases_of

GONE = Problem("gone", "{file!r} is gone", Stopped.SOURCE, (Way("skip it", "strandline source skip {file:shell}"),))
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


def test_what_a_problem_tells_of_is_known_beside_it() -> None:
    """Damage: of what runs in a replica the console shows no way out; or the ways of the problem before."""
    said = GONE.said(file="a; b")
    found = heard(Standing(problems={"s": said, "v": "it is full"}))
    assert [cases_of(found.problems[name]) for name in ("s", "v")] == [said.cases, ()]
    found = heard(Standing(problems={"s": said}), Standing(problems={"s": "it is full"}))
    assert (found.problems, cases_of(found.problems["s"])) == ({"s": "it is full"}, ())


def test_what_a_notice_tells_of_is_known_beside_it() -> None:
    """Damage: of a source that runs in a replica the console shows a notice, and no way out."""
    said = GONE.said(file="a; b")
    found = heard(Standing(notices={"s": ("it is slow", said), "v": ("it is new",)}))
    assert found.notices == {"s": ("it is slow", said), "v": ("it is new",)}
    assert [*map(cases_of, found.notices["s"])] == [(), said.cases]
    found = heard(Standing(notices={"s": (said,)}), Standing(notices={"s": (said, "it is slow")}))
    assert [*map(cases_of, found.notices["s"])] == [said.cases, ()]


def test_the_text_of_a_peer_that_sends_no_cases_stands_alone() -> None:
    """Damage: a replica of the version before cannot say what stands in its way."""
    found, said = Heard(), GONE.said(file="a")
    found.learn(Status(problems={"s": str(said)}), 1)
    assert (found.problems["s"], cases_of(found.problems["s"])) == (said, ())
    found.learn(Status(problems={"s": "something else"}, cases={"s": said.cases}), 1)
    assert cases_of(found.problems["s"]) == (), "what tells of something else is not believed"
