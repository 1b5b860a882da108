"""Defects in a driver that is served over the wire: the contract catches each of them through the wire, too.

A preview is not among them: the protocol has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.materialize.wire.served_in_process import Put, ServedSQLite

from strandline.errors import StrandlineError
from strandline.materialize.wire.options import CodecName
from strandline.testing.checking import DEFECTS, SCENARIOS, Defect, sound

CAUGHT = [defect for defect in DEFECTS if defect.previews and defect.keeps is not False]
"""Those that an endpoint with a checkpoint can have, and a connector."""
Make = Callable[[Put], ServedSQLite]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Return how to make an endpoint, each with a codec in turn."""
    numbers = count()
    with ExitStack() as closing:

        def made(put: Put) -> ServedSQLite:
            number = next(numbers)
            codec = list(CodecName)[number % len(CodecName)]
            endpoint = ServedSQLite(tmp_path / f"{number}.db", codec, monkeypatch, put)
            closing.callback(endpoint.close)
            return endpoint

        yield made


def play(scenario: str, open_: Callable[[], ServedSQLite]) -> None:
    """Play a scenario of the contract."""
    step = SCENARIOS[scenario]
    given: Any = open_ if step.many else open_()
    asyncio.run(step.run(given))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("defect", CAUGHT, ids=lambda defect: defect.mistake)
def test_a_defect_behind_the_wire_is_caught(defect: Defect, make: Make) -> None:
    """Damage: an author's connector that loses or doubles rows passes the contract, because the wire hides it."""
    with pytest.raises((AssertionError, StrandlineError, pytest.fail.Exception)):
        play(defect.scenario, lambda: make(defect(set())))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("scenario", sorted({defect.scenario for defect in CAUGHT}))
def test_without_a_defect_it_passes(scenario: str, make: Make) -> None:
    """Damage: the test above shows nothing, because everything fails."""
    play(scenario, lambda: make(sound))
