"""A next version is prepared beside the writer, which does not notice, and then takes its place at one time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from contents_of import contents

from strandline.bench.environment import ITEMS, TICK_MS, VIEWS, Place, _change, over_lists
from strandline.compute import stage
from strandline.controller.core import Core
from strandline.controller.defining import relocating
from strandline.controller.defining.apply import apply
from strandline.controller.defining.project.settings import Defined, Project
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import View
from strandline.controller.preparing.preparation import Preparation, ask, settle, withdraw
from strandline.errors import ConfigError, DefinitionError, FencedError, InvalidUsage
from strandline.persist.shard.state import ShardState
from strandline.store.protocols import Consensus
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync

TOTALS: Final = VIEWS["totals"]
SUMS: Final = TOTALS.replace("sum(amount)", "sum(amount + 1)")
WIDER: Final = "SELECT grp, count(*) AS n FROM items GROUP BY grp"
BASE: Final = {
    "items": f"CREATE TABLE items ({ITEMS})",
    "totals": f"CREATE MATERIALIZED VIEW totals AS {TOTALS}",
    "above": "CREATE MATERIALIZED VIEW above AS SELECT grp, n FROM totals WHERE n > 0",
}


def project(**changes: str) -> Project:
    """Return the project of the first version, with changes."""
    texts = BASE | changes
    defined = tuple(Defined(f"{name}.sql", parse(text)) for name, text in texts.items())  # type: ignore[arg-type]
    return Project(Path(), "memory://", None, {}, 1_000, {}, defined)


class Site:
    """A location over lists, with a process that writes its first version."""

    def __init__(self) -> None:
        self.place: Place = over_lists()
        self.config = Config(keep_history="1000 hours")
        self.processes = 0
        self.writer = self.open(Mode.FULL)
        self.n = 0
        run_sync(apply(self.writer, project()))
        self.tick(2)

    def assembly(self) -> Any:
        """Return what another process is given."""
        self.processes += 1
        return replace(self.place.assembly, ids=CountingIds(f"p{self.processes}"))

    def open(self, mode: Mode, **options: Any) -> Core:
        """Open the location in another process, as it were."""
        return run_sync(Core.open(self.assembly(), msgspec.structs.replace(self.config, **options), mode))

    def prepare(self, wanted: Project) -> Preparation:
        """Begin to prepare a version."""
        core = self.open(Mode.READ)
        run_sync(core.look())
        return Preparation(core, wanted)

    def tick(self, ticks: int = 1) -> int:
        """Let time pass, change the table and have the writer tick."""
        for _ in range(ticks):
            self.place.clock.now += TICK_MS
            run_sync(_change(self.writer, self.n))
            self.n += 1
            time = run_sync(self.writer.tick())
            assert self.writer.health.problems() == {}
        return time

    def promote(self, preparation: Preparation) -> Core:
        """Promote a version, as its process does."""
        version = preparation.version
        run_sync(preparation.close())
        core = run_sync(
            Core.open(
                self.assembly(), msgspec.structs.replace(self.config, take_over=True), Mode.FULL, version.promoted
            )
        )
        run_sync(settle(core, version))
        self.writer = core
        return core

    def state(self, name: str) -> ShardState:
        """The newest state of a collection's shard."""
        return self.writer.client.state_of(self.writer.catalog.collection(name).shard)

    def held(self, name: str, at: int | None = None) -> dict[str, int]:
        """What a collection holds at a time (default: the last), row by row."""
        return contents(self.writer, name, at)


def changed(text: str) -> str:
    """The statement of another `totals`."""
    return f"CREATE MATERIALIZED VIEW totals AS {text}"


def test_a_changed_view_is_prepared_unseen_and_takes_over_at_one_time() -> None:
    """Damage: a new version is down while it computes; or both are seen at once; or history before it is lost."""
    site = Site()
    preparation = site.prepare(project(totals=changed(SUMS)))
    for _ in range(4):
        time = site.tick()
        version = run_sync(preparation.tick())
    assert (list(version.views), version.behind, version.later) == (["totals"], {}, {})
    old, shard = site.held("totals", time), site.writer.catalog.collection("totals").shard
    core = site.promote(preparation)
    assert core.catalog.collection("totals").shard == shard
    assert site.held("totals", time) == old
    site.n += 1
    now = site.tick()
    assert site.held("totals", time) == old, "what was readable stays what it was"
    assert site.held("totals", now) != site.held("totals", time)
    run_sync(apply(core, project(totals=changed(SUMS), plain=f"CREATE MATERIALIZED VIEW plain AS {SUMS}")))
    now = site.tick()
    assert site.held("totals", now) == site.held("plain", now)
    assert len(site.held("above", now)) == len(site.held("totals", now))
    run = core.require_writing().instance._views.dataflows.runs_of("totals")[-1]
    assert run.sink.counters.audits == 0, "it was computed anew"
    view = core.catalog.collection("totals")
    assert isinstance(view, View)
    assert (view.seed, core.catalog.dropped) == ("", ())


def test_nothing_that_others_read_is_written() -> None:
    """Damage: preparing fences the writer, moves its uppers, or changes its catalog."""
    site = Site()
    consensus: Consensus = site.place.assembly.consensus

    def versions() -> dict[str, tuple[Any, ...]]:
        keys = run_sync(consensus.list_keys())
        states = {k: site.writer.client.known(k) for k in keys}
        run_sync(site.writer.catalogs.read())
        own = {s for item in site.writer.catalog.items.values() for s in getattr(item, "shards", ())}
        return {
            key: (state.upper, state.epoch, state.digest, state.batches, site.writer.catalog)
            for key, state in states.items()
            if state is not None and key in own
        }

    before = versions()
    preparation = site.prepare(project(totals=changed(SUMS), new=changed(WIDER).replace("totals", "new")))
    run_sync(preparation.tick())
    run_sync(preparation.tick())
    for shard in before:
        run_sync(site.writer.client._machine(shard).refresh())
    assert versions() == before
    assert set(preparation.version.views) == {"totals", "new"}
    site.tick()


def test_what_is_no_longer_read_is_no_longer_held() -> None:
    """Damage: a table is kept with its whole past, or after it was dropped, by a process that read it once."""
    site = Site()
    wanted = project(totals=changed(SUMS))
    preparation = site.prepare(wanted)
    run_sync(preparation.tick())
    shard = site.writer.catalog.collection("items").shard
    run_sync(site.writer.client.look(shard))
    assert site.state("items").leased
    run_sync(apply(site.writer, wanted))
    site.tick()
    run_sync(preparation.tick())
    run_sync(site.writer.client.look(shard))
    assert (preparation.version.views, site.state("items").leased) == ({}, {})


def test_a_version_that_was_cut_off_goes_on_where_it_was() -> None:
    """Damage: a process that prepares for an hour begins anew when it is restarted."""
    site = Site()
    wanted = project(totals=changed(SUMS))
    first = site.prepare(wanted)
    run_sync(first.tick())
    site.tick(3)
    second = site.prepare(wanted)
    run_sync(second.tick())
    assert second.version.views == first.version.views
    run = second._instance._views.dataflows.runs_of("totals")[-1]
    assert (run.sink.counters.audits, second.version.behind) == (0, {})
    assert run.last is None or run.last.window != "anew"


def test_a_view_with_other_columns_gets_a_shard_of_its_own_and_what_reads_it_is_computed_later() -> None:
    """Damage: rows of two shapes in one history; or a view that reads it keeps the old one's rows."""
    site = Site()
    wanted = project(totals=changed(WIDER))
    preparation = site.prepare(wanted)
    site.tick()
    version = run_sync(preparation.tick())
    assert set(version.views) == {"totals", "above"}
    assert "reads a view that changes" in version.later["above"]
    before = site.writer.catalog.collection("totals").shard
    core = site.promote(preparation)
    run_sync(apply(core, wanted))
    now = site.tick()
    assert core.catalog.collection("totals").shard != before
    assert len(site.held("above", now)) == len(site.held("totals", now)) > 0
    site.tick(2)
    assert before not in core.catalog.dropped
    assert site.writer.client.known(before) is None or site.state("totals").shard != before


def test_the_writer_before_is_fenced() -> None:
    """Damage: two versions write one history."""
    site = Site()
    preparation = site.prepare(project(totals=changed(SUMS)))
    run_sync(preparation.tick())
    old = site.writer
    site.promote(preparation)
    with pytest.raises(FencedError):
        run_sync(old.tick())


def test_a_promotion_is_asked_for_only_once_all_has_caught_up() -> None:
    """Damage: an operator promotes an empty view."""
    site = Site()
    with pytest.raises(InvalidUsage, match="no next version is prepared"):
        run_sync(ask(site.writer, force=False))
    preparation = site.prepare(project(totals=changed(SUMS)))
    run_sync(preparation.tick())
    site.tick(5)
    for lease in preparation._leases.values():
        run_sync(lease.refresh())
    run_sync(preparation._publish(run_sync(preparation._reach())))
    with pytest.raises(InvalidUsage, match=r"has not caught up \(totals: it is at"):
        run_sync(ask(site.writer, force=False))
    forced = run_sync(ask(site.writer, force=True))
    assert run_sync(preparation.tick()).asked == forced.asked != ""
    run_sync(withdraw(site.writer, forced.asked))
    assert run_sync(preparation.tick()).asked == ""
    assert run_sync(ask(site.writer, force=False)).asked


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("items", "CREATE TABLE items (id INT)", "only views can be promoted"),
        ("totals", "CREATE TABLE totals (id INT)", "only views can be promoted"),
        ("totals", changed("SELECT nothing FROM items"), "totals.sql"),
    ],
)
def test_what_cannot_be_promoted_is_refused(name: str, text: str, said: str) -> None:
    """Damage: a table loses its rows because its definition was changed."""
    site = Site()
    preparation = site.prepare(project(**{name: text}))
    with pytest.raises(DefinitionError, match=said):
        run_sync(preparation.tick())


def test_the_location_is_the_next_projects_from_the_promotion_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the process that promotes is killed, and neither project can be run: another one has the location."""
    monkeypatch.setattr(relocating, "shares_location", lambda root, project: True)  # the first one is still there
    site = Site()
    run_sync(apply(site.writer, replace(project(), root=Path("/now"))))
    wanted = replace(project(totals=changed(SUMS)), root=Path("/next"))
    preparation = site.prepare(wanted)
    run_sync(preparation.tick())
    for _ in range(3):
        site.tick()
        run_sync(preparation.tick())
    run_sync(ask(site.writer, force=True))
    run_sync(preparation.tick())
    promoted = run_sync(preparation.promote())
    assert promoted is not None
    assert promoted.catalog.root == "/next"


def test_a_location_without_a_first_version_has_no_next_one() -> None:
    """Damage: a process waits for ever for a writer that was never there."""
    place = over_lists()
    with pytest.raises(ConfigError, match="nothing was stored"):
        run_sync(Core.open(place.assembly, Config(), Mode.READ))


def test_a_view_that_a_new_version_plans_otherwise_goes_on_where_it_stands(monkeypatch) -> None:
    """Damage: the state that the new plan keeps begins after where the view stands, which then waits for ever."""
    site = Site()
    was = site.tick(3)
    before = site.held("totals", was)
    run_sync(site.writer.close())
    monkeypatch.setattr(stage, "FINGERPRINT_DIGITS", 15)  # the names of stages: none has the shard that it had
    site.writer = site.open(Mode.FULL)
    now = site.tick()
    assert site.held("totals", was) == before
    assert len(site.held("above", now)) == len(site.held("totals", now)) > 0


def test_two_views_that_share_state_are_prepared_together() -> None:
    """Damage: one of two changed views is computed over a shard that no stage writes, and never catches up."""
    site = Site()
    likewise = changed(SUMS).replace("totals", "likewise")
    wanted = project(totals=changed(SUMS), likewise=likewise)
    preparation = site.prepare(wanted)
    site.tick()
    version = run_sync(preparation.tick())
    assert (set(version.views), version.behind, version.later) == ({"totals", "likewise"}, {}, {})
    core = site.promote(preparation)
    run_sync(apply(core, wanted))
    now = site.tick()
    assert site.held("totals", now) == site.held("likewise", now) != {}


def test_a_view_over_a_table_that_is_made_with_the_promotion_is_made_then() -> None:
    """Damage: a project with a new table cannot be prepared; or its new view is forgotten."""
    site = Site()
    other = {"other": "CREATE TABLE other (id INT)", "over": "CREATE MATERIALIZED VIEW over AS SELECT id FROM other"}
    wanted = project(totals=changed(SUMS), **other)
    preparation = site.prepare(wanted)
    version = run_sync(preparation.tick())
    assert (set(version.views), version.later) == (
        {"totals"},
        {"over": "it reads what is made with the promotion: other"},
    )
    core = site.promote(preparation)
    assert "over" in run_sync(apply(core, wanted)).created


INSTANCE: Final = "CREATE INSTANCE x REPLICAS ()"


def test_a_view_of_an_instance_that_is_made_with_the_promotion_is_made_then() -> None:
    """Damage: a project with a new instance cannot be prepared; or its view runs in the process of the environment."""
    site = Site()
    over = {"over": "CREATE MATERIALIZED VIEW over IN INSTANCE X AS SELECT id FROM items"}
    wanted = project(totals=changed(SUMS), x=INSTANCE, **over)
    preparation = site.prepare(wanted)
    version = run_sync(preparation.tick())
    assert (set(version.views), version.later) == ({"totals"}, {"over": "its instance is made with the promotion"})
    before = site.writer.catalog.writes
    core = site.promote(preparation)
    assert core.catalog.writes > before, "replicas of the version before are fenced"
    assert run_sync(apply(core, wanted)).created == ("x", "over")
    assert core.catalog.one("over", View, "view").instance == "x"


def test_a_view_that_is_prepared_for_an_instance_is_of_it() -> None:
    """Damage: a view is promoted out of its instance; or it is written from two processes."""
    site = Site()
    run_sync(apply(site.writer, project(x=INSTANCE)))
    over = "CREATE MATERIALIZED VIEW over IN INSTANCE x AS SELECT grp, sum(amount + 1) AS n FROM items GROUP BY grp"
    preparation = site.prepare(project(x=INSTANCE, over=over))
    site.tick()
    version = run_sync(preparation.tick())
    assert version.views["over"].view.instance == "x"
    run_sync(preparation.close())
    moved = project(x=INSTANCE, totals=changed(TOTALS).replace("totals AS", "totals IN INSTANCE x AS"))
    with pytest.raises(
        DefinitionError, match=r"totals.sql: 'totals': it was created with no instance; drop it first, then"
    ):
        run_sync(site.prepare(moved).tick())
    unknown = project(x=INSTANCE, over=over.replace("INSTANCE x", "INSTANCE xx"))
    with pytest.raises(DefinitionError, match=r"over.sql: there is no instance 'xx'; did you mean 'x'"):
        run_sync(site.prepare(unknown).tick())


def test_a_source_is_not_promoted_into_another_instance() -> None:
    """Damage: a promotion moves a source, which then is read by the processes of both versions."""
    site = Site()
    events = "CREATE SOURCE events (id INT, value BIGINT) FROM tide"
    run_sync(apply(site.writer, project(x=INSTANCE, events=events)))
    moved = events.replace("events (", "events IN INSTANCE x (")
    with pytest.raises(
        DefinitionError, match=r"events.sql: 'events': it was created with no instance; only views can be promoted"
    ):
        run_sync(site.prepare(project(x=INSTANCE, events=moved)).tick())
    later = {"later": moved.replace("events", "later"), "over": "CREATE MATERIALIZED VIEW over AS SELECT id FROM later"}
    version = run_sync(site.prepare(project(x=INSTANCE, events=events, **later)).tick())
    assert version.later == {"over": "it reads what is made with the promotion: later"}
