"""The process that may write a location: the living holder, or a successor of a dead one in the same deployment."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import psutil
import pytest

from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, Holder
from strandline.controller.location.config import Config
from strandline.controller.location.tenure import Claim, Opening, SystemProcesses, admit, lives, released
from strandline.errors import ConfigError, Held
from strandline.persist.handles.register import Register
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.kernel import run_sync

HERE, ELSEWHERE, BOOT = "here", "elsewhere", "first"
OURS = 100


@dataclass
class Host:
    """Processes of a host, by id and start time."""

    running: dict[int, int] = field(default_factory=lambda: {OURS: 5000})
    own_id: int = OURS

    def host(self) -> str:
        """This host."""
        return HERE

    def boot(self) -> str:
        """This start of it."""
        return BOOT

    def own(self) -> int:
        """This process."""
        return self.own_id

    def started_ms(self, pid: int, boot: str) -> int | None:
        """When a process started."""
        return self.running.get(pid) if boot == BOOT else None


def _held(pid: int = 7, host: str = HERE, deployment: str = "d", *, reentrant: bool = True) -> Catalog:
    return Catalog(holder=Holder(deployment, host, pid, 1000, 0, reentrant, BOOT))


def _claim(deployment: str = "d", *, take_over: bool = False) -> Claim:
    return Claim(deployment, reentrant=True, take_over=take_over, opened_ms=9)


def test_a_free_location_is_taken() -> None:
    """Damage: no process can ever begin."""
    assert admit(Catalog(), _claim(), Host()) == Holder("d", HERE, OURS, 5000, 9, True, BOOT)


def test_a_living_holder_is_not_succeeded_and_is_named() -> None:
    """Else two environments would write."""
    with pytest.raises(ConfigError, match="process 7 on host 'here', which is alive") as refused:
        admit(_held(), _claim(), Host({OURS: 5000, 7: 1000}))
    assert str(refused.value).endswith("or take over with `strandline run --take-over`"), "no other command can"


def test_a_dead_holder_of_the_same_deployment_is_succeeded_without_an_operator() -> None:
    """Damage: after a crash at night nothing goes on until an operator comes."""
    assert admit(_held(), _claim(), Host()).pid == OURS


class Place:
    """A location, and what each process of the host knows of who opens it."""

    def __init__(self) -> None:
        self.consensus = MemoryConsensus()
        self.running = {OURS: 5000, 7: 1000}

    def opening(self, own: int) -> Opening:
        """As process ``own`` has it."""
        return Opening(HandClock(9), CountingIds(f"p{own}"), self.consensus, Host(self.running, own))

    @property
    def catalogs(self) -> CatalogStore:
        """The catalog of the location."""
        return CatalogStore(Register(KEY, HandClock(9), CountingIds(), self.consensus))

    def told(self) -> int | None:
        """Which process opens it, as another one learns."""
        found = run_sync(self.opening(8).process(run_sync(self.catalogs.read()).holder))
        return None if found is None else found.pid


def test_a_process_that_opens_a_location_is_known_until_it_has_opened_it_or_ends() -> None:
    """Damage: while Spark starts, `status` says that no process writes, and a change opens the location besides."""
    place = Place()
    assert place.told() is None
    ours = run_sync(place.opening(7).announce(Config()))
    assert (ours.pid, place.told()) == (7, 7)
    with pytest.raises(Held, match="is being opened by deployment .*, process 7 on host 'here', which starts; wait"):
        run_sync(place.opening(OURS).announce(Config()))
    run_sync(place.opening(OURS).withdraw(msgspec.structs.replace(ours, pid=OURS)))
    assert place.told() == 7, "only the process itself withdraws"
    run_sync(place.opening(7).withdraw(ours))
    assert place.told() is None
    run_sync(place.opening(7).announce(Config()))
    del place.running[7]  # it was killed
    assert place.told() is None
    assert run_sync(place.opening(OURS).announce(Config())).pid == OURS


def test_a_process_may_take_over_from_one_that_opens_and_one_that_holds_is_said_to_open_no_longer() -> None:
    """Damage: the operator cannot get past a process that hangs; or `status` names each writer twice."""
    place = Place()
    run_sync(place.opening(7).announce(Config()))
    ours = run_sync(place.opening(OURS).announce(Config(take_over=True)))
    assert place.told() == OURS
    run_sync(place.catalogs.succeed(lambda _: ours))
    assert place.told() is None
    with pytest.raises(Held, match="is being written by"):
        run_sync(place.opening(7).announce(Config()))


def test_another_process_that_got_the_same_id_is_not_the_holder() -> None:
    """Else a reused process id would lock the location for ever."""
    assert admit(_held(), _claim(), Host({OURS: 5000, 7: 900_000})).pid == OURS


def test_a_dead_holder_of_another_deployment_is_refused_and_named() -> None:
    """Damage: a mistyped location is taken from its owner; or the operator is to stop what has ended long ago."""
    with pytest.raises(ConfigError) as refused:
        admit(_held(deployment="other"), _claim(), Host())
    assert str(refused.value) == (
        "this location was last written by deployment 'other', process 7 on host 'here', which has ended, and this "
        "process is of deployment 'd'; set `deployment: other` if this is its project, or take over with "
        "`strandline run --take-over`"
    )


def test_a_holder_on_another_host_is_succeeded_by_its_own_deployment_only() -> None:
    """Else a pod that moved hosts could not restart, or a stranger could take over."""
    assert admit(_held(host=ELSEWHERE), _claim(), Host()).pid == OURS
    with pytest.raises(
        ConfigError,
        match="is being written by deployment 'other', process 7 on host 'elsewhere', which may be alive there, and",
    ):
        admit(_held(host=ELSEWHERE, deployment="other"), _claim(), Host())


def test_take_over_succeeds_any_holder() -> None:
    """Else an operator could not act."""
    assert admit(_held(), _claim(take_over=True), Host({OURS: 5000, 7: 1000})).pid == OURS
    assert admit(_held(reentrant=False), _claim(take_over=True), Host()).pid == OURS


def test_a_holder_that_is_not_reentrant_waits_for_an_operator() -> None:
    """Else a deployment that wants to be looked at after a crash would restart by itself."""
    with pytest.raises(ConfigError, match="does not allow to be succeeded; strandline release"):
        admit(_held(reentrant=False), _claim(), Host())


def test_an_operator_releases_a_dead_holder_or_one_of_another_host_and_never_a_living_one() -> None:
    """Damage: no operator can restart a location that waits for one, or a release stops work that goes on."""
    for dead in (_held(reentrant=False), _held(host=ELSEWHERE, reentrant=False)):
        free = released(dead, Host())
        assert free.holder is None
        assert free.epoch == dead.epoch
        assert admit(free, _claim(), Host()).pid == OURS
    with pytest.raises(ConfigError, match="process 7 on host 'here', which is alive; stop it first"):
        released(_held(reentrant=False), Host({OURS: 5000, 7: 1000}))
    assert released(Catalog(), Host()) == Catalog()


def ours(**changes: object) -> Holder:
    """This process as the holder."""
    holder = admit(Catalog(), _claim(), SystemProcesses())
    return msgspec.structs.replace(holder, **changes)


def test_the_system_knows_this_process_and_no_other_of_its_id() -> None:
    """Else the checks above would be about a fiction."""
    system, started = SystemProcesses(), ours().process_started_ms
    assert lives(ours(), system) is True
    assert lives(ours(process_started_ms=started - 60_000), system) is False
    assert lives(ours(boot="another"), system) is False
    assert lives(ours(host="no such host"), system) is None
    assert lives(ours(pid=2**22 + 1), system) is False


def test_a_clock_that_is_set_leaves_the_living_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: after the clock is set a second `run` fences the one that lives, and `release` and `verify` do too."""
    holder, before = ours(), psutil.boot_time()
    monkeypatch.setattr(
        psutil._psplatform, "boot_time", lambda: before - 3600
    )  # what the kernel derives from the clock
    assert psutil.boot_time() == before - 3600
    assert lives(holder, SystemProcesses()) is True


def test_a_holder_stored_by_the_first_versions_is_known_by_the_clock() -> None:
    """Damage: an upgrade takes over from a process of the version before that lives, or calls the catalog damaged."""
    alive = int(psutil.Process().create_time() * 1000)
    stored = b'{"deployment":"d","host":"%s","pid":%d,"process_started_ms":%d,"opened_ms":5,"reentrant":true}'
    for started, living in ((alive, True), (alive - 60_000, False)):
        text = stored % (SystemProcesses().host().encode(), SystemProcesses().own(), started)
        assert lives(msgspec.json.decode(text, type=Holder), SystemProcesses()) is living
