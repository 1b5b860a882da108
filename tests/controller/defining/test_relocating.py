"""A project that is moved to another directory goes on from there.  Over lists."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from strandline.controller.core import Core
from strandline.controller.defining.apply import Applied, apply
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Project
from strandline.controller.defining.relocating import seen_by
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.version import Version
from strandline.controller.preparing.preparation import overlay
from strandline.errors import ConfigError, DefinitionError
from strandline.materialize.driver import Driver
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import Endpoint, MemoryDriver, MemorySession
from strandline.testing.kinds import Kinds
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_source import Upstream
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring.registry import Readers

FILES: Mapping[str, str] = {
    "strandline.yml": "location: data\nendpoints: {out: {driver: memory, path: out.db}}",
    "secret": "hush",
    "connections/here.sql": "CREATE CONNECTION here TO lists (server = one, password = 'file:secret')",
    "sources/s.sql": "CREATE SOURCE s (partition STRING, offset BIGINT, value BIGINT) FROM list (connection = here)",
    "materializations/m.yml": "into: out\ncollections: [{collection: s, key: [partition, offset]}]",
    "materializations/n.yml": "into: memory\noptions: {path: /elsewhere/n.db}\n"
    "collections: [{collection: s, key: [partition, offset]}]",
}
"""A source whose password, and an endpoint whose file, are seen from the project; and an endpoint elsewhere."""


class Place:
    """A location in memory, and a project in a directory; which paths its endpoints were opened at is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self._blob, self._consensus, self._clock = MemoryBlob(), MemoryConsensus(), HandClock(1_000)
        Kinds({"one": Upstream()}).install(monkeypatch.setitem)
        self.root = root
        self.opened: list[str] = []
        self.write(FILES)

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def project(self) -> Project:
        """Read the project."""
        return load(self.root)

    def move(self, name: str) -> None:
        """Give the project's directory another name."""
        self.root = self.root.rename(self.root.with_name(name))

    def open(self, mode: Mode = Mode.FULL, project: Project | None = None) -> Core:
        """Open the location as a fresh process would."""
        self._clock.now += 1
        self.opened.clear()
        assembly = list_assembly(
            self._clock,
            CountingIds(f"at-{self._clock.now}"),
            self._blob,
            self._consensus,
            drivers=self._driver,
        )
        nothing = cast("Any", None)
        object.__setattr__(assembly, "connectors", Readers(self._clock, assembly.engine, nothing, nothing))
        return run_sync(Core.open(assembly, Config(), mode, seen=seen_by(project)))

    def run(self) -> tuple[Core, Applied]:
        """Open the location for the project, and apply it, as `strandline run` does."""
        project = self.project()
        core = self.open(project=project)
        applied = run_sync(apply(core, project))
        run_sync(core.tick())
        return core, applied

    def _driver(self, _endpoint: str, options: Mapping[str, str]) -> Driver:
        self.opened.append(options["path"])
        return MemoryDriver(Endpoint(), MemorySession)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """Return a project that has run once."""
    place = Place(monkeypatch, tmp_path / "first")
    core, applied = place.run()
    assert applied.created == ("here", "s", "m", "n")
    run_sync(core.close())
    return place


def test_a_project_that_was_moved_goes_on_where_it_is_now(place: Place) -> None:
    """Damage: a directory that is renamed can never run again; or its rows go to the place where it was."""
    place.move("second")
    core, applied = place.run()
    assert applied == Applied((), ("here", "s", "m", "n"))
    assert set(place.opened) == {str(place.root / "out.db"), "/elsewhere/n.db"}
    assert core.catalog.items["here"].options["password"] == f"file:{place.root / 'secret'}"  # type: ignore[union-attr]
    run_sync(core.close())
    core = place.open()  # by a program that knows of no project
    run_sync(core.tick())
    assert set(place.opened) == {str(place.root / "out.db"), "/elsewhere/n.db"}
    run_sync(core.close())


def test_a_program_that_opens_the_location_alone_goes_on_once_it_applies_the_project(place: Place) -> None:
    """Damage: what was opened before the project was read writes to where the project was."""
    place.move("second")
    core = place.open()
    run_sync(core.tick())
    place.opened.clear()
    run_sync(apply(core, place.project()))
    run_sync(core.tick())
    assert place.opened == [str(place.root / "out.db")]
    run_sync(core.close())


def test_a_reader_looks_where_the_project_is_now_and_changes_nothing(place: Place) -> None:
    """Damage: `verify` of an endpoint, before the first run at the new place, compares the file at the old one."""
    old = str(place.root / "out.db")
    place.move("second")
    core = place.open(Mode.READ, place.project())
    run_sync(core.look())
    assert core.catalog.items["m"].options["path"] == str(place.root / "out.db")  # type: ignore[union-attr]
    core = place.open(Mode.READ)
    run_sync(core.look())
    assert core.catalog.items["m"].options["path"] == old  # type: ignore[union-attr]


def test_a_definition_that_was_changed_is_still_refused_after_a_move(place: Place) -> None:
    """Damage: an endpoint whose file is another one now is taken for the one that was filled."""
    place.move("second")
    place.write({"strandline.yml": "location: data\nendpoints: {out: {driver: memory, path: other.db}}"})
    with pytest.raises(
        DefinitionError,
        match=r"materializations/m.yml: 'm': it was created with other options: path '.*out.db' → '.*other.db'",
    ):
        place.run()


def test_another_project_on_the_location_moves_nothing(place: Place) -> None:
    """Damage: a second project that shares a location sends the rows of the first to a directory of its own."""
    there = str(place.root / "out.db")
    other = place.root.with_name("other")
    other.mkdir()
    (other / "strandline.yml").write_text("location: data")
    core = place.open(project=load(other))
    run_sync(core.tick())
    assert there in place.opened
    run_sync(core.close())


def test_a_default_holds_for_what_is_created_from_then_on(place: Place) -> None:
    """Damage: a default that is set later makes each source and endpoint a changed definition: to be dropped."""
    place.write(
        {
            "strandline.yml": FILES["strandline.yml"] + "\non_error: continue",
            "sources/r.sql": FILES["sources/s.sql"]
            .replace("SOURCE s", "SOURCE r")
            .replace("= here", "= here, on_error = 'fail'"),
            "sources/q.sql": FILES["sources/s.sql"].replace("SOURCE s", "SOURCE q"),
            "materializations/o.yml": "into: memory\noptions: {path: /elsewhere/o.db}\n"
            "collections: [{collection: q, key: [partition, offset]}]",
        }
    )
    core, applied = place.run()
    assert (applied.created, applied.kept) == (("q", "r", "o"), ("here", "s", "m", "n"))
    said = {name: getattr(item, "options", {}).get("on_error") for name, item in core.catalog.items.items()}
    assert said == {"here": None, "s": None, "m": None, "n": None, "r": "fail", "q": "continue", "o": "continue"}
    run_sync(core.close())
    place.move("second")
    core, applied = place.run()
    assert not applied.created
    run_sync(core.close())
    place.write({"strandline.yml": FILES["strandline.yml"] + "\non_error: sometimes"})
    with pytest.raises(ConfigError, match=r"Invalid enum value 'sometimes' - at `\$.on_error`"):
        place.project()


def test_the_same_directory_by_another_spelling_is_the_same(place: Place) -> None:
    """Damage: a project that is named by a link, or from elsewhere, is another one: it reads and fills all anew."""
    (place.root / "in").mkdir()
    link = place.root.with_name("link")
    link.symlink_to(place.root)
    for spelling in (link, place.root / "in" / "..", link / "." / "in" / ".."):
        project = load(spelling)
        core = place.open(project=project)
        before = core.catalog
        assert run_sync(apply(core, project)) == Applied((), ("here", "s", "m", "n"))
        assert core.catalog == before
        run_sync(core.close())


def test_a_path_by_another_spelling_is_the_same(place: Place) -> None:
    """Damage: `./out.db` for `out.db` drops the endpoint, and fills it anew."""
    text = FILES["strandline.yml"]
    for spelling in ("./out.db", "sub/../out.db", str(place.root / "out.db"), f"{place.root}/sub/..//out.db"):
        place.write({"strandline.yml": text.replace("out.db", spelling)})
        core, applied = place.run()
        assert applied == Applied((), ("here", "s", "m", "n"))
        assert core.catalog.items["m"].options["path"] == str(place.root / "out.db")  # type: ignore[union-attr]
        run_sync(core.close())


def test_another_checkout_at_the_location_changes_nothing_while_the_first_is_there(place: Place) -> None:
    """Damage: a command in a second checkout sends endpoints there; or its promotion is refused for nothing."""
    first, second = place.root, place.root.with_name("second")
    place.write({"strandline.yml": FILES["strandline.yml"].replace("location: data", f"location: {first}/data")})
    shutil.copytree(first, second)
    core = place.open(project=load(second))
    before = core.catalog
    assert run_sync(apply(core, load(second))) == Applied((), ("here", "s", "m", "n"))
    assert core.catalog == before
    more = "CREATE MATERIALIZED VIEW v AS SELECT value FROM s"
    (second / "views").mkdir()
    (second / "views" / "v.sql").write_text(more)
    assert [*overlay(core, load(second), Version()).views] == ["v"], "what is the same there is no change"
    with pytest.raises(ConfigError, match="belongs to the project in"):
        run_sync(apply(core, load(second)))
    shutil.rmtree(first)
    assert run_sync(apply(core, load(second))).created == ("v",)
    assert core.catalog.items["m"].options["path"] == str(second / "out.db")  # type: ignore[union-attr]
    run_sync(core.close())
