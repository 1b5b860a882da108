"""Planted mistakes in what a replica makes of commands: of the scripts of `test_traces`, one must notice each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest
from tests.instance.replica import test_traces

from strandline.errors import StrandlineError
from strandline.frontier import EMPTY
from strandline.instance import replica as replica_module
from strandline.instance.protocol.messages import (
    AllowCompaction,
    Create,
    Frontiers,
    Hello,
    Peek,
    Response,
    Unknown,
)
from strandline.instance.reconcile import AS_OF, PLAN, difference
from strandline.instance.replica import Connection, Find, Peeks, Replica, Reporter, Standing, Wanted, _answered

Plant = Callable[[pytest.MonkeyPatch], None]

SCRIPTS: Final = [
    each for name, each in inspect.getmembers(test_traces, inspect.isfunction) if name.startswith("test_")
]

MISTAKES: Final[dict[str, Plant]] = {}


def mistake(of: object, name: str) -> Callable[[Any], Any]:
    """Have a function be planted in the place of ``of.name``; its docstring says what is wrong then."""

    def planted(wrong: Any) -> Any:
        MISTAKES[wrong.__name__] = lambda patch: patch.setattr(of, name, wrong)
        return wrong

    return planted


def _but_for(reason: str) -> Callable[[Create, Create], str]:
    return lambda runs, wanted: "" if (why := difference(runs, wanted)) == reason else why


MISTAKES["kept_with_as_of_ahead"] = lambda patch: patch.setattr(
    "strandline.instance.reconcile.difference", _but_for(AS_OF)
)
MISTAKES["kept_with_another_plan"] = lambda patch: patch.setattr(
    "strandline.instance.reconcile.difference", _but_for(PLAN)
)

_obey = Replica._obey


@mistake(Replica, "_obey")
async def compacted_before_all_is_said(self: Replica, connection: Connection, command: Any) -> None:
    """End what runs before it is known whether it is to run."""
    if isinstance(command, AllowCompaction) and connection.wanted is not None:
        self._wanted.end(command.id)
    await _obey(self, connection, command)


@mistake(Replica, "_obey")
async def said_nothing_of_what_is_unknown(self: Replica, connection: Connection, command: Any) -> None:
    """Leave out what is not understood."""
    if not isinstance(command, Unknown):
        await _obey(self, connection, command)


@mistake(Peeks, "_answer")
async def answered_twice(self: Peeks, peek: Peek, find: Find) -> None:
    """Answer what was cancelled and answered, too."""
    answer = await _answered(peek, find)
    self._owed.pop(peek.uuid, None)
    for _ in range(2):
        await self._send(answer)


@mistake(Peeks, "cancel")
async def cancelled_in_silence(self: Peeks, uuids: Iterable[str]) -> None:
    """Owe no answer to what was cancelled."""
    for uuid in uuids:
        self._held.pop(uuid, None)
        if (running := self._owed.pop(uuid, None)) is not None:
            await running.cancel()


_changes = Reporter.changes


@mistake(Reporter, "changes")
def dropped_is_complete(self: Reporter, now: Standing) -> list[Response]:
    """Report the empty frontier of what was dropped."""
    return [
        Frontiers(each.writes | dict.fromkeys(each.gone, EMPTY), each.needs, each.advanced)
        if isinstance(each, Frontiers)
        else each
        for each in _changes(self, now)
    ]


_refusal = Replica._refusal


@mistake(Replica, "_refusal")
def stale_controller_obeyed(self: Replica, hello: Hello) -> str:
    """Look at no generation."""
    return _refusal(self, Hello(max(hello.epoch, self._epoch), hello.writes, hello.location))


@mistake(Replica, "_refusal")
def writes_that_are_over_resumed(self: Replica, hello: Hello) -> str:
    """Look at no epoch of writes."""
    return _refusal(self, Hello(hello.epoch, max(hello.writes, self._writes), hello.location))


@mistake(Replica, "_refusal")
def any_location(self: Replica, hello: Hello) -> str:
    """Obey the controller of another location."""
    return _refusal(self, Hello(hello.epoch, hello.writes, self._location))


@mistake(Wanted, "create")
def allowed_for_good(self: Wanted, created: Create) -> None:
    """Let a new creation begin and write because one of its name might."""
    self.created[created.id] = created


@mistake(Wanted, "end")
def ended_with_the_first_export(self: Wanted, export: str) -> None:
    """Drop what has other exports left."""
    for each in [each for each in self.created.values() if export in each.exports]:
        self.drop(each.id)


_end = Wanted.end


@mistake(Wanted, "end")
def kept_because_it_is_equal(self: Wanted, export: str) -> None:
    """Forget that something was stopped once it is created again."""
    _end(self, export)
    self.stopped.clear()


@mistake(replica_module.Replica, "_left")
async def alone_for_good(self: Replica, connection: Connection) -> None:
    """Go on with what only one may run, though another one may begin it."""
    if connection is self._connection:
        self._connection = None


def test_every_script_holds_without_a_mistake() -> None:
    """Damage: a script that fails anyway notices everything."""
    for script in SCRIPTS:
        script()


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the scripts look at what every replica does, right or wrong."""
    MISTAKES[name](monkeypatch)
    with pytest.raises((AssertionError, StrandlineError, TimeoutError)):
        for script in SCRIPTS:
            script()
