"""Questions to upstream that are answered late: nothing is lost, doubled or at another time, and none overtakes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sources.test_ingest import World

from strandline.errors import Unavailable
from strandline.frontier import as_time
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.question import Patience, Question
from strandline.sources.steps import Advanced, Stalled
from strandline.testing.doubles import HandClock
from strandline.testing.lists.list_source import ListReader
from strandline.testing.simulation.kernel import run_sync


class Pause:
    """Where a call to upstream may take its time."""

    def __await__(self) -> Generator[None]:
        yield


class Stepped:
    """A call that goes on only while it is waited for, as far as a draw says; None: to its end."""

    def __init__(self, draw: Any, call: Any) -> None:
        self._draw, self._call, self._ended = draw, call(), False

    async def wait(self, seconds: float | None) -> bool:
        """See `Running.wait`."""
        steps = 99 if seconds is None else self._draw(st.integers(0, 3))
        for _ in range(steps):
            if self._ended:
                break
            try:
                self._call.send(None)
            except StopIteration:
                self._ended = True
        return self._ended

    async def cancel(self) -> None:
        """See `Running.cancel`."""
        self._call.close()


class Slow(ListReader):
    """A reader whose answers may be late; it notices whether it is asked twice at a time."""

    asking = False

    async def upstream_frontier(self) -> Any:
        """See `SourceReader.upstream_frontier`."""
        return await self._slowly(super().upstream_frontier())

    async def commit(self, resume: Any) -> None:
        """See `SourceReader.commit`."""
        await self._slowly(super().commit(resume))

    async def read(self, *arguments: Any, **options: Any) -> Any:
        """See `SourceReader.read`."""
        assert not self.asking, "it is read from while a question is open"
        return await super().read(*arguments, **options)

    async def _slowly(self, call: Any) -> Any:
        assert not self.asking, "two questions at a time"
        self.asking = True
        try:
            await Pause()
            found = await call
            await Pause()
        finally:
            self.asking = False
            call.close()
        return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_late_answers_lose_and_double_nothing(data: st.DataObject) -> None:
    """Damage: an answer that comes two ticks later binds what another process has moved beyond, or forgets too much."""
    world, begun = World(), list[Stepped]()

    def beside(call: Any) -> Stepped:
        begun.append(Stepped(data.draw, call))
        return begun[-1]

    async def opened() -> Ingestion:
        patience = Patience(beside, PERIOD_MS / 1000)
        return await world.open(reader=Slow(world.upstream), patience=patience)

    async def body() -> None:
        seats = [await opened(), await opened()]
        for number in range(data.draw(st.integers(3, 12))):
            seat = data.draw(st.sampled_from(seats))
            world.clock.now += data.draw(st.sampled_from((1, PERIOD_MS)))
            match data.draw(st.sampled_from(("produce", "tick", "step", "tick and step", "reopen"))):
                case "produce":
                    world.upstream.produce(data.draw(st.sampled_from("pq")), number)
                case "reopen":
                    await seat.close()
                    seats[seats.index(seat)] = await opened()
                case what:
                    if what != "step":
                        await seat.tick(as_time(seat.bound) + 1)
                    if what != "tick":
                        await seat.catch_up()
        for seat in seats:
            for _ in range(2):
                world.clock.now += PERIOD_MS
                ticked = await seat.tick(as_time(seat.bound) + 1, wait=True)
                assert isinstance(ticked, Advanced), ticked
            assert not isinstance(await seat.catch_up(), Stalled)
        assert await world.updates() == await world.expected()
        assert (await world.remap()).frontier == world.upstream.frontier

    try:
        run_sync(body())
    finally:
        for each in begun:
            run_sync(each.cancel())


def test_the_answer_to_another_question_is_dropped() -> None:
    """Damage: what a commit came to is taken for how far upstream can be read."""
    clock, held = HandClock(), {"on": True}

    class Held(Stepped):
        async def wait(self, seconds: float | None) -> bool:
            return False if held["on"] else await super().wait(None)

    async def body() -> None:
        question = Question(clock, Patience(lambda call: Held(None, call), 1.0))

        async def nothing() -> None:
            pass

        async def seven() -> int:
            return 7

        with pytest.raises(Unavailable, match="has not answered since"):
            await question.tell("forget", nothing, wait=False)
        held["on"] = False
        assert await question.ask("how far", seven, wait=False) == 7
        assert question.silence == ""

    run_sync(body())
