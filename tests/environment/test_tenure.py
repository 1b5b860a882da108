"""Who may write a location: the living holder, or whoever succeeds a dead one of the same deployment."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from strandline.environment.catalog import Catalog, Holder
from strandline.environment.tenure import Claim, SystemProcesses, admit, lives, released
from strandline.errors import ConfigError

HERE, ELSEWHERE = "here", "elsewhere"
OURS = 100


@dataclass
class Host:
    """Processes of a host, by id and start time."""

    running: dict[int, int] = field(default_factory=lambda: {OURS: 5000})

    def host(self) -> str:
        """This host."""
        return HERE

    def own(self) -> tuple[int, int]:
        """This process."""
        return OURS, 5000

    def started_ms(self, pid: int) -> int | None:
        """When a process started."""
        return self.running.get(pid)


def _held(pid: int = 7, host: str = HERE, deployment: str = "d", *, reentrant: bool = True) -> Catalog:
    return Catalog(holder=Holder(deployment, host, pid, 1000, 0, reentrant))


def _claim(deployment: str = "d", *, take_over: bool = False) -> Claim:
    return Claim(deployment, reentrant=True, take_over=take_over, opened_ms=9)


def test_a_free_location_is_taken() -> None:
    """Else nobody could ever begin."""
    assert admit(Catalog(), _claim(), Host()) == Holder("d", HERE, OURS, 5000, 9, True)


def test_a_living_holder_is_not_succeeded_and_is_named() -> None:
    """Else two environments would write."""
    with pytest.raises(ConfigError, match="process 7 on host 'here', which is alive"):
        admit(_held(), _claim(), Host({OURS: 5000, 7: 1000}))


def test_a_dead_holder_of_the_same_deployment_is_succeeded_without_an_operator() -> None:
    """Else a crashed process would need somebody at night."""
    assert admit(_held(), _claim(), Host()).pid == OURS


def test_another_process_that_got_the_same_id_is_not_the_holder() -> None:
    """Else a reused process id would lock the location for ever."""
    assert admit(_held(), _claim(), Host({OURS: 5000, 7: 900_000})).pid == OURS


def test_a_dead_holder_of_another_deployment_is_refused_and_named() -> None:
    """Else a mistyped location would be taken from its owner."""
    with pytest.raises(ConfigError, match=r"deployment 'other'.*deployment 'd'.*--take-over"):
        admit(_held(deployment="other"), _claim(), Host())


def test_a_holder_on_another_host_is_succeeded_by_its_own_deployment_only() -> None:
    """Else a pod that moved hosts could not restart, or a stranger could take over."""
    assert admit(_held(host=ELSEWHERE), _claim(), Host()).pid == OURS
    with pytest.raises(ConfigError):
        admit(_held(host=ELSEWHERE, deployment="other"), _claim(), Host())


def test_take_over_succeeds_anybody() -> None:
    """Else an operator could not act."""
    assert admit(_held(), _claim(take_over=True), Host({OURS: 5000, 7: 1000})).pid == OURS
    assert admit(_held(reentrant=False), _claim(take_over=True), Host()).pid == OURS


def test_a_holder_that_is_not_reentrant_waits_for_an_operator() -> None:
    """Else a deployment that wants to be looked at after a crash would restart by itself."""
    with pytest.raises(ConfigError, match="does not allow to be succeeded; strandline release"):
        admit(_held(reentrant=False), _claim(), Host())


def test_an_operator_releases_a_dead_holder_or_one_of_another_host_and_never_a_living_one() -> None:
    """Else nobody could start again what waits for an operator, or a release would stop work that goes on."""
    for dead in (_held(reentrant=False), _held(host=ELSEWHERE, reentrant=False)):
        free = released(dead, Host())
        assert free.holder is None
        assert free.epoch == dead.epoch
        assert admit(free, _claim(), Host()).pid == OURS
    with pytest.raises(ConfigError, match="process 7 on host 'here', which is alive; stop it first"):
        released(_held(reentrant=False), Host({OURS: 5000, 7: 1000}))
    assert released(Catalog(), Host()) == Catalog()


def test_the_system_knows_this_process_and_no_other_of_its_id() -> None:
    """Else the checks above would be about a fiction."""
    system = SystemProcesses()
    pid, started = system.own()
    holder = Holder("d", system.host(), pid, started, 0, True)

    assert lives(holder, system) is True
    assert lives(Holder("d", system.host(), pid, started - 60_000, 0, True), system) is False
    assert lives(Holder("d", "no such host", pid, started, 0, True), system) is None
