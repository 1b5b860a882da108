"""A plane that is made late: by the first call that needs it, once, and closed with what it was opened for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.scalars.remembered import Answers
from strandline.errors import ConfigError
from strandline.wiring import spark_start
from strandline.wiring.loop import outcomes
from strandline.wiring.spark_start import Plane, asker, late


class Engine:
    """An engine that says by which thread it was called."""

    async def times(self, of: str) -> tuple[str, int]:
        """Answer."""
        return of, threading.get_ident()

    async def net(self, *, many: int) -> AsyncGenerator[int, None]:
        """Yield numbers."""
        for number in range(many):
            yield number

    def settings(self) -> dict[str, str]:
        """Answer at once."""
        return {"a": "b"}


class Analyst:
    """An analyst of the plane that is made."""

    functions = frozenset({"nobody"})

    def schema_of(self, sql: str, _: object, *, ours: bool = False) -> Schema:
        """Answer."""
        return Schema(())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a test opens; engines here are of `Engine`'s kind."""
    monkeypatch.setattr(spark_start, "_kind", lambda name: {"engine": Engine}.get(name, Analyst))
    with ExitStack() as stack:
        yield stack


class Maker:
    """Makes planes, and counts; the first ``failures`` times it fails."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.made: list[int] = []
        self.closed = 0

    def __call__(self, opened: ExitStack) -> Plane:
        opened.callback(self._close)
        if self.failures:
            self.failures -= 1
            raise ConfigError("no Java")
        self.made.append(threading.get_ident())
        made: Any = Engine()
        analyst: Any = Analyst()
        return Plane(made, analyst, Answers(f"{asker()}here"), made, made)

    def _close(self) -> None:
        self.closed += 1


def test_the_first_call_makes_the_plane_beside_the_loop_and_all_others_use_it(opened: ExitStack) -> None:
    """Damage: leases run out while Spark starts, or it starts twice."""
    maker = Maker()
    plane: Any = late(maker, None, ["Own"], opened)  # type: ignore[arg-type]

    async def ask() -> None:
        first, second = await outcomes([plane.engine.times("x"), plane.engine.times("y")])
        assert (first, second) == (("x", threading.get_ident()), ("y", threading.get_ident()))
        assert [each async for each in plane.engine.net(many=3)] == [0, 1, 2]

    assert plane.analyst.functions == {"own"}, "that needs no session"
    assert maker.made == []
    asyncio.run(ask())
    assert plane.engine.settings() == {"a": "b"}
    assert len(maker.made) == 1
    assert maker.made[0] != threading.get_ident()
    assert maker.closed == 0
    opened.close()
    assert maker.closed == 1


def test_a_stream_and_a_plain_call_make_it_too(opened: ExitStack) -> None:
    """Damage: what is asked first decides whether there is an answer."""

    async def stream(plane: Any) -> list[int]:
        return [each async for each in plane.engine.net(many=2)]

    assert asyncio.run(stream(late(Maker(), None, [], opened))) == [0, 1]  # type: ignore[arg-type]
    assert late(Maker(), None, [], opened).engine.settings() == {"a": "b"}  # type: ignore[arg-type]


def test_a_plane_that_cannot_be_made_is_closed_and_tried_again(opened: ExitStack) -> None:
    """Damage: a program that reads goes on failing after Java was installed, or leaks what was opened each time."""
    maker = Maker(failures=1)
    plane = late(maker, None, [], opened)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no Java"):
        plane.engine.settings()
    assert maker.closed == 1
    assert plane.engine.settings() == {"a": "b"}


@pytest.mark.parametrize("own", [True, False])
def test_what_another_authority_answered_is_forgotten_once_spark_is_there(opened: ExitStack, own: bool) -> None:
    """Damage: a view is verified by what another Spark said of its text."""
    kept = Answers(f"{asker()}{'here' if own else 'elsewhere'}")
    spark_start.RememberedAnalyst(_analyst("a INT"), kept).schema_of("SELECT 1", {})
    encoded = kept.encode()
    assert encoded is not None
    maker = Maker()
    plane = late(maker, None, [], opened)  # type: ignore[arg-type]
    plane.answers.recall(encoded)
    assert [each.name for each in plane.analyst.schema_of("SELECT 1", {})] == ["a"], "as the writer planned it"
    assert maker.made == []
    plane.engine.settings()
    assert bool(list(plane.analyst.schema_of("SELECT 1", {}))) == own


def _analyst(ddl: str) -> Any:
    name, kind = ddl.lower().split()
    return type("Told", (Analyst,), {"schema_of": lambda *_, **__: Schema((Column(name, kind),))})()
