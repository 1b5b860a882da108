"""The contract of `Consensus`, as a test suite that every implementation and every double runs.

Subclass it in a test module and give it a fixture ``open_consensus``: a function that opens one more handle to *one*
place, which is empty when the test begins.

    class TestMyConsensus(ConsensusContract):
        @pytest.fixture
        def open_consensus(self, tmp_path):
            return lambda: MyConsensus(tmp_path / "consensus")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import pytest

from strandline.errors import Indeterminate, InvalidUsage
from strandline.store.protocols import SEQNO_MAX, Committed, CompareAndSet, Consensus, Mismatch, Versioned

T = TypeVar("T")
APPENDERS = 6
ROUNDS = 12
OpenConsensus: TypeAlias = Callable[[], Consensus]


def step(key: str, expected: int | None, data: bytes = b"", first: int = 0) -> CompareAndSet:
    """Return the request that follows ``expected``; on a fresh key it installs seqno ``first``."""
    return CompareAndSet(key, expected, Versioned(first if expected is None else expected + 1, data))


async def fill(consensus: Consensus, key: str, first: int, last: int) -> list[Versioned]:
    """Commit the versions ``first`` to ``last`` of a fresh key, and return them."""
    for seqno in range(first, last + 1):
        request = step(key, None if seqno == first else seqno - 1, b"%d" % seqno, first)
        assert await consensus.compare_and_set(request) == Committed()
    return [Versioned(seqno, b"%d" % seqno) for seqno in range(first, last + 1)]


class ConsensusContract:
    """The tests for every Consensus."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one test's coroutine.  A double that lives outside asyncio overrides this."""
        return asyncio.run(coroutine)

    def test_a_fresh_key_has_no_head_and_no_versions(self, open_consensus: OpenConsensus) -> None:
        """Damage: a shard that was never created appears to exist."""

        async def body() -> None:
            consensus = open_consensus()
            assert await consensus.head("k") is None
            assert await consensus.scan("k", 0, 10) == []
            assert await consensus.list_keys() == []

        self.run(body())

    @pytest.mark.parametrize("first", [0, 1, 7, 2**40, SEQNO_MAX])
    def test_the_first_version_may_have_any_seqno(self, open_consensus: OpenConsensus, first: int) -> None:
        """Damage: shards, which start at 1, cannot be made; or long-lived ones overflow."""

        async def body() -> None:
            consensus = open_consensus()
            assert await consensus.compare_and_set(step("k", None, b"one", first)) == Committed()
            assert await consensus.head("k") == Versioned(first, b"one")
            assert await consensus.compare_and_set(step("k", None, b"two", first)) == Mismatch()
            assert await consensus.head("k") == Versioned(first, b"one")

        self.run(body())

    def test_every_next_version_is_the_head(self, open_consensus: OpenConsensus) -> None:
        """Damage: a commit that was acknowledged is not what the next reader sees."""

        async def body() -> None:
            consensus = open_consensus()
            versions = await fill(consensus, "k", 1, 20)
            assert await consensus.head("k") == versions[-1]
            assert await consensus.scan("k", 0, 100) == versions

        self.run(body())

    @pytest.mark.parametrize("expected", [None, 0, 1, 2, 4, 5, 1000, SEQNO_MAX - 1])
    def test_any_other_expectation_than_the_head_is_a_mismatch(
        self, open_consensus: OpenConsensus, expected: int | None
    ) -> None:
        """Damage: a stale writer, or one that jumps ahead, overwrites what others committed."""

        async def body() -> None:
            consensus = open_consensus()
            versions = await fill(consensus, "k", 1, 3)
            assert await consensus.compare_and_set(step("k", expected, b"stale")) == Mismatch()
            assert await consensus.compare_and_set_many([step("k", expected, b"stale")]) == [Mismatch()]
            assert await consensus.scan("k", 0, 100) == versions

        self.run(body())

    def test_expecting_a_version_of_a_fresh_key_is_a_mismatch(self, open_consensus: OpenConsensus) -> None:
        """Damage: the history of a key starts in the middle."""

        async def body() -> None:
            consensus = open_consensus()
            assert await consensus.compare_and_set(step("k", 5)) == Mismatch()
            assert await consensus.compare_and_set(step("k", 0)) == Mismatch()
            assert await consensus.head("k") is None
            assert await consensus.list_keys() == []

        self.run(body())

    def test_a_writer_that_holds_a_truncated_seqno_is_refused(self, open_consensus: OpenConsensus) -> None:
        """Damage: truncation removes the witness, and a suspended writer overwrites a newer version."""

        async def body() -> None:
            consensus = open_consensus()
            await fill(consensus, "k", 1, 9)
            assert await consensus.truncate("k", 9) == 8
            for stale in (None, 1, 3, 7, 8):
                assert await consensus.compare_and_set(step("k", stale, first=1)) == Mismatch()
            assert await consensus.scan("k", 0, 100) == [Versioned(9, b"9")]
            assert await consensus.compare_and_set(step("k", 9)) == Committed()

        self.run(body())

    def test_keys_do_not_clash(self, open_consensus: OpenConsensus) -> None:
        """Damage: one shard's commit moves another's state."""
        keys = ["k", "K", "k ", "kk", "k/1", "k/", "k%", "k_", "k'", 'k"', "k\\", "ключ", "k;--", "%", "*", "k\x00k"]
        keys += ["", "x" * 200, "x" * 200 + "v", "x" * 500]

        async def body() -> None:
            consensus = open_consensus()
            for key in keys:
                assert await consensus.compare_and_set(step(key, None, key.encode())) == Committed()
            assert [await consensus.head(key) for key in keys] == [Versioned(0, key.encode()) for key in keys]
            assert await consensus.list_keys() == sorted(keys)
            assert await consensus.compare_and_set(step("k", 0)) == Committed()
            assert await consensus.truncate("k", 1) == 1
            assert await consensus.scan("kk", 0, 10) == [Versioned(0, b"kk")]

        self.run(body())

    def test_scan_begins_at_start_and_stops_at_the_limit(self, open_consensus: OpenConsensus) -> None:
        """Damage: a reader that catches up skips a diff, or reads for ever."""

        async def body() -> None:
            consensus = open_consensus()
            versions = await fill(consensus, "k", 3, 9)
            assert await consensus.scan("k", 0, 2) == versions[:2]
            assert await consensus.scan("k", 3, 1) == versions[:1]
            assert await consensus.scan("k", 5, 3) == versions[2:5]
            assert await consensus.scan("k", 9, 10) == versions[-1:]
            assert await consensus.scan("k", 10, 10) == []
            assert await consensus.scan("k", 2**70, 10) == []
            assert await consensus.scan("k", -5, 2**70) == versions
            assert await consensus.scan("k", 0, 0) == []
            with pytest.raises(InvalidUsage):
                await consensus.scan("k", 0, -1)

        self.run(body())

    def test_truncation_crosses_versions_repeats_harmlessly_and_keeps_the_head(
        self, open_consensus: OpenConsensus
    ) -> None:
        """Damage: a collection repeated after a crash fails, or takes live versions."""

        async def body() -> None:
            consensus = open_consensus()
            versions = await fill(consensus, "k", 1, 9)
            assert await consensus.truncate("k", 0) == 0
            assert await consensus.truncate("k", 1) == 0
            assert await consensus.truncate("k", 5) == 4
            assert await consensus.truncate("k", 5) == 0
            assert await consensus.truncate("k", 3) == 0
            assert await consensus.scan("k", 0, 100) == versions[4:]
            assert await consensus.truncate("k", 9) == 4
            assert await consensus.truncate("k", 9) == 0
            assert await consensus.head("k") == versions[-1]

        self.run(body())

    def test_truncation_beyond_the_head_is_an_error_and_changes_nothing(self, open_consensus: OpenConsensus) -> None:
        """Damage: a collector that miscounts deletes the state itself."""

        async def body() -> None:
            consensus = open_consensus()
            versions = await fill(consensus, "k", 1, 3)
            for seqno in (4, 5, 2**70):
                with pytest.raises(InvalidUsage):
                    await consensus.truncate("k", seqno)
            with pytest.raises(InvalidUsage):
                await consensus.truncate("unknown", 0)
            assert await consensus.scan("k", 0, 100) == versions

        self.run(body())

    def test_two_handles_to_one_place_see_each_other(self, open_consensus: OpenConsensus) -> None:
        """Damage: two processes both conclude that they own the shard."""

        async def body() -> None:
            one, other = open_consensus(), open_consensus()
            assert await one.compare_and_set(step("k", None, b"one")) == Committed()
            assert await other.head("k") == Versioned(0, b"one")
            assert await other.compare_and_set(step("k", 0, b"other")) == Committed()
            assert await one.compare_and_set(step("k", 0, b"late")) == Mismatch()
            assert await one.scan("k", 0, 10) == [Versioned(0, b"one"), Versioned(1, b"other")]
            assert await one.truncate("k", 1) == 1
            assert await other.scan("k", 0, 10) == [Versioned(1, b"other")]
            assert await other.list_keys() == ["k"]

        self.run(body())

    def test_many_requests_are_each_decided_alone(self, open_consensus: OpenConsensus) -> None:
        """Damage: one shard that lost its race keeps all others of the tick from advancing."""

        async def body() -> None:
            consensus = open_consensus()
            await fill(consensus, "a", 1, 2)
            await fill(consensus, "b", 1, 3)
            requests = [step("a", 2, b"A"), step("b", 2, b"B"), step("c", None, b"C"), step("d", 1, b"D")]
            outcomes = [Committed(), Mismatch(), Committed(), Mismatch()]
            assert await consensus.compare_and_set_many(requests) == outcomes
            assert await consensus.head("a") == Versioned(3, b"A")
            assert await consensus.head("b") == Versioned(3, b"3")
            assert await consensus.head("c") == Versioned(0, b"C")
            assert await consensus.head("d") is None
            assert await consensus.compare_and_set_many([]) == []

        self.run(body())

    def test_of_two_requests_for_one_version_exactly_one_commits(self, open_consensus: OpenConsensus) -> None:
        """Damage: two writers of one process both get an acknowledgement for one version."""

        async def body() -> None:
            consensus = open_consensus()
            await fill(consensus, "k", 1, 2)
            outcomes = await consensus.compare_and_set_many([step("k", 2, b"one"), step("k", 2, b"two")])
            assert sorted(outcomes, key=repr) == [Committed(), Mismatch()]
            winner = b"one" if outcomes[0] == Committed() else b"two"
            assert await consensus.scan("k", 3, 10) == [Versioned(3, winner)]

        self.run(body())

    @pytest.mark.parametrize("size", [0, 1, 10 << 10, 1 << 20])
    def test_payloads_come_back_whole(self, open_consensus: OpenConsensus, size: int) -> None:
        """Damage: a large state is truncated, or an empty one counts as absent."""
        data = bytes(i % 251 for i in range(size))

        async def body() -> None:
            consensus = open_consensus()
            assert await consensus.compare_and_set(step("k", None, data)) == Committed()
            assert await consensus.head("k") == Versioned(0, data)
            assert await consensus.scan("k", 0, 1) == [Versioned(0, data)]

        self.run(body())


class SharedConsensusContract:
    """The additional tests for a Consensus that threads and processes share; run `ConsensusContract` too.

    Each handle that ``open_consensus`` returns is used by one thread at a time.
    """

    @pytest.mark.parametrize("fresh", [True, False])
    def test_of_many_appenders_exactly_one_wins(self, open_consensus: OpenConsensus, fresh: bool) -> None:
        """Damage: two processes both conclude that they committed one version, and one's data is gone."""
        handles = [open_consensus() for _ in range(APPENDERS)]
        keys = [f"k{number}" for number in range(ROUNDS)]
        if not fresh:
            asyncio.run(handles[0].compare_and_set_many([step(key, None, b"0") for key in keys]))
        met = threading.Barrier(APPENDERS)

        def append(number: int) -> list[str]:
            won = []
            for key in keys:
                met.wait()
                first = number if fresh else 0  # even writers that would begin at another seqno
                request = step(key, None if fresh else 0, b"%d" % number, first)
                if asyncio.run(handles[number].compare_and_set(request)) == Committed():
                    won.append(key)
            return won

        with ThreadPoolExecutor(APPENDERS) as pool:
            wins = list(pool.map(append, range(APPENDERS)))
        assert sorted(key for won in wins for key in won) == sorted(keys)
        for number, won in enumerate(wins):
            for key in won:
                head = asyncio.run(handles[0].head(key))
                assert head == Versioned(number if fresh else 1, b"%d" % number)

    def test_of_concurrent_appends_none_is_lost_while_others_truncate(self, open_consensus: OpenConsensus) -> None:
        """Damage: an acknowledged append vanishes, or is stored twice, because the history was truncated."""
        asyncio.run(open_consensus().compare_and_set(step("k", None, b"", 1)))

        async def append(consensus: Consensus, name: str) -> list[str]:
            done: list[str] = []
            while len(done) < ROUNDS:
                head = await consensus.head("k")
                assert head is not None
                mark = f"{name}.{len(done)}"
                try:
                    data = head.data + b" " + mark.encode()
                    committed = await consensus.compare_and_set(step("k", head.seqno, data)) == Committed()
                except Indeterminate:  # so look for the witness
                    head = await consensus.head("k")
                    assert head is not None
                    committed = mark in head.data.decode().split()
                if committed:
                    done.append(mark)
            return done

        async def truncate(consensus: Consensus) -> list[str]:
            for _ in range(2 * ROUNDS):
                head = await consensus.head("k")
                assert head is not None
                await consensus.truncate("k", head.seqno)
            return []

        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(asyncio.run, append(open_consensus(), name)) for name in "ab"]
            calls += [pool.submit(asyncio.run, truncate(open_consensus())) for _ in range(2)]
            done = [mark for call in calls for mark in call.result()]
        head = asyncio.run(open_consensus().head("k"))
        assert head is not None
        assert sorted(head.data.decode().split()) == sorted(done)
        assert head.seqno == 1 + len(done)
