# ruff: noqa: D103  # a bad history is named for what is wrong with it
"""The observers see what they are there to see: each law flags a bad history, and lets a good one pass."""

from __future__ import annotations

import pytest

from laws.broken import LawBrokenError
from laws.history import Answer, History, Update
from laws.observed import Observed
from laws.places import WatchedPlaces
from laws.registers import RegisterHistory
from strandline.frontier import EMPTY, Frontier
from strandline.testing.simulation.kernel import run_sync


def asked(history: History, name: str, time: int, *shards: str, epoch: int | None = None):
    """Ask for one row ``name`` at ``time`` in each of ``shards`` (default: "s")."""
    updates = {shard: [Update(f"{name}@{time}".encode(), time, 1)] for shard in shards or ("s",)}
    return history.ask(name, updates, time, time + 1, epoch)


def seen(history: History, time: int, *rows: str, shard: str = "s", began: int | None = None) -> None:
    """Read ``rows``, each once."""
    history.read(shard, time, {row.encode(): 1 for row in rows}, history.tick() if began is None else began)


def two_reads_differ(history: History) -> None:
    asked(history, "a", 0)
    seen(history, 0)
    seen(history, 0, "a@0")


def acknowledged_is_missing(history: History) -> None:
    history.tell(asked(history, "a", 0), Answer.YES)
    seen(history, 3)


def refused_is_there(history: History) -> None:
    history.tell(asked(history, "a", 0), Answer.NO)
    seen(history, 0, "a@0")


def without_a_request(history: History) -> None:
    asked(history, "a", 0)
    seen(history, 0, "a@0", "stranger")


def row_is_there_twice(history: History) -> None:
    asked(history, "a", 0)
    history.read("s", 0, {b"a@0": 2}, history.tick())


def purpose_is_there_twice(history: History) -> None:
    asked(history, "a", 0)
    asked(history, "a", 1)
    seen(history, 1, "a@0", "a@1")


def purpose_is_acknowledged_at_two_times(history: History) -> None:
    history.tell_purpose("a", 1)
    history.tell_purpose("a", 2)


def attempt_is_torn(history: History) -> None:
    history.ask("a", {"s": [Update(b"one", 0, 1), Update(b"two", 0, 1)]}, 0, 1)
    seen(history, 0, "one")


def transaction_is_torn(history: History) -> None:
    asked(history, "a", 0, "s", "t")
    seen(history, 0, "a@0")
    seen(history, 0, shard="t")


def old_epoch_is_acknowledged(history: History) -> None:
    history.admitted("s", 2)
    history.tell(asked(history, "a", 0, epoch=1), Answer.YES)


def old_epoch_follows_a_newer_one(history: History) -> None:
    late = asked(history, "late", 1, epoch=1)
    asked(history, "a", 0, epoch=2)
    seen(history, 1, "a@0", late.marker("s").row.decode())
    history.finish()


def times_are_shared(history: History) -> None:
    history.ask("a", {"s": [Update(b"a", 0, 1)]}, 0, 3)
    history.ask("b", {"s": [Update(b"b", 2, 1)]}, 2, 4)
    seen(history, 5, "a", "b")
    history.finish()


def count_is_negative(history: History) -> None:
    history.read("s", 0, {b"a": -1}, history.tick())


def held_time_is_unreadable(history: History) -> None:
    history.unreadable("s", 3, "compacted")


@pytest.mark.parametrize(
    ("bad", "law"),
    [
        (two_reads_differ, "P1"),
        (acknowledged_is_missing, "P3"),
        (refused_is_there, "P6"),
        (without_a_request, "P6"),
        (row_is_there_twice, "P6"),
        (purpose_is_there_twice, "P6"),
        (purpose_is_acknowledged_at_two_times, "P6"),
        (attempt_is_torn, "P6"),
        (transaction_is_torn, "atomic"),
        (old_epoch_is_acknowledged, "fence"),
        (old_epoch_follows_a_newer_one, "fence"),
        (times_are_shared, "bounds"),
        (count_is_negative, "negative"),
        (held_time_is_unreadable, "holds"),
    ],
)
def test_a_bad_history_breaks_the_law_that_it_breaks(bad, law: str) -> None:
    """Damage: an observer that sees nothing turns every green run into an empty promise."""
    with pytest.raises(LawBrokenError) as caught:
        bad(History())
    assert caught.value.law == law


def test_a_good_history_breaks_none() -> None:
    """Damage: false alarms are switched off, and the true ones with them."""
    history = History()
    before = history.tick()
    history.admitted("s", 1)
    first = asked(history, "a", 0, epoch=1)
    seen(history, 0, "a@0")
    history.tell(first, Answer.YES)
    history.admitted("s", 2)
    asked(history, "unknown", 1, epoch=1)
    history.tell(asked(history, "refused", 1, epoch=1), Answer.NO)
    history.tell(asked(history, "b", 2, "s", "t", epoch=2), Answer.YES)
    history.read_whole("s", [Update(b"a@0", 0, 1), Update(b"b@2", 2, 1)], [0, 2], before)
    seen(history, 2, "b@2", shard="t")
    history.finish()
    assert history.acknowledged == 2


def word_is_lost(words: RegisterHistory) -> None:
    words.tell(b"a")
    words.read([], words.began())


def word_is_doubled(words: RegisterHistory) -> None:
    words.read([b"a", b"a"], words.began())


def word_is_strange(words: RegisterHistory) -> None:
    words.read([b"z"], words.began())


def register_forks(words: RegisterHistory) -> None:
    words.read([b"a", b"b"], words.began())
    words.read([b"b"], (0, 0))


def register_goes_back(words: RegisterHistory) -> None:
    words.read([b"a", b"b"], words.began())
    words.read([b"a"], words.began())


@pytest.mark.parametrize("bad", [word_is_lost, word_is_doubled, word_is_strange, register_forks, register_goes_back])
def test_a_bad_register_is_flagged(bad) -> None:
    """Damage: the catalog loses a definition, and no run says so."""
    words = RegisterHistory()
    words.ask(b"a")
    words.ask(b"b")
    with pytest.raises(LawBrokenError, match="law register"):
        bad(words)


def test_a_good_register_is_not() -> None:
    """Damage: false alarms are switched off, and the true ones with them."""
    words = RegisterHistory()
    words.ask(b"a")
    words.ask(b"b")
    early = words.began()
    words.read([b"b"], words.began())
    words.tell(b"a")
    words.read([b"b", b"a"], words.began())
    words.read([b"b"], early)
    assert words.acknowledged == 1


def test_what_goes_back_is_seen() -> None:
    """Damage: a process is shown a frontier, and then an older one, and no law says so."""
    observed = Observed()
    for value in (Frontier(3), 3, Frontier(4), EMPTY):
        observed.look("a reader", "upper", value)
    observed.look("another reader", "upper", Frontier(1))
    with pytest.raises(LawBrokenError, match="upper was seen at inf, and then at 9"):
        observed.look("a reader", "upper", 9)


class Deleting:
    """Places in which a part has died, and the time that has passed since."""

    def __init__(self) -> None:
        self.places = WatchedPlaces(lambda _: True)
        self.places.grace_ms = 10
        self.places.now_ms = lambda: self.now
        self.now = 0
        self.places._died["s/parts/1-b/part"] = 0

    def delete(self, now: int) -> None:
        """Delete the part at ``now``."""
        self.now = now
        run_sync(self.places.blob.delete("s/parts/1-b/part"))


def test_a_part_that_is_deleted_within_the_grace_period_is_seen() -> None:
    """Damage: a reader without a hold finds that a part is missing, and no law says so."""
    with pytest.raises(LawBrokenError, match="P5g .* deleted 9 ms after it was last named"):
        Deleting().delete(9)
    Deleting().delete(10)


def test_a_part_that_is_deleted_while_a_committed_transaction_names_it_is_seen() -> None:
    """Damage: an acknowledged transaction can never be applied, and no law says so."""
    promised = Deleting()
    promised.places._promised.add("s/parts/1-b/part")
    with pytest.raises(LawBrokenError, match="swept"):
        promised.delete(10)
