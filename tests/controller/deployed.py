"""A project in a directory and the location that it is applied to, with files and SQLite at its ends.  Over lists."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa

from strandline.controller.core import Core
from strandline.controller.defining.apply import apply
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Project
from strandline.controller.language.statements import parse
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config, Mode
from strandline.controller.preparing.planned import deploy, deployment
from strandline.instance.tables import Change
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, Fuse, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.wiring import registry

BASE: Final[Mapping[str, str]] = {
    "strandline.yml": "location: data\nendpoints:\n  out:\n    driver: sqlite\n    path: out.db\n",
    "connections/c.sql": "CREATE CONNECTION c TO postgres (user = 'me')",
    "sources/s.sql": "CREATE SOURCE s (id INT, word STRING)\nFROM files (path = 'in', format = 'csv', header = 'true')",
    "tables/notes.sql": "CREATE TABLE notes (id INT, word STRING)",
    "views/counts.sql": "CREATE MATERIALIZED VIEW counts AS SELECT word, count(*) AS n FROM notes GROUP BY word",
    "views/many.sql": "CREATE MATERIALIZED VIEW many AS SELECT word, n FROM counts WHERE n > 1",
    "views/read.sql": "CREATE MATERIALIZED VIEW read AS SELECT id, word FROM s",
    "materializations/m.yml": "into: out\ncollections:\n  - collection: counts\n    key: [word]\n",
    "materializations/t.sql": "CREATE MATERIALIZATION t INTO sqlite OPTIONS (path 'other.db') AS notes KEY (id)",
}


class Deployed:
    """A location that is as its project says; ``fuse`` may end its process at any write."""

    def __init__(self, root: Path, files: Mapping[str, str] = BASE) -> None:
        self.root = root
        self.run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.Runner().run  # files and SQLite use threads
        self._clock, self._blob, self._consensus = HandClock(1_000), MemoryBlob(), MemoryConsensus()
        self.write(files)
        (root / "in").mkdir(exist_ok=True)
        self.open()
        self.run(apply(self.core, self.project))

    def open(self, fuse: Fuse | None = None) -> None:
        """Open the location as a fresh process would, whatever has become of the one before."""
        self._clock.now += 1
        guarded: Any = self._consensus if fuse is None else fuse.guard(self._consensus)
        ids, nothing = CountingIds(f"at-{self._clock.now}"), cast("Any", None)
        assembly = list_assembly(self._clock, ids, self._blob, guarded, drivers=partial(registry.driver, self._clock))
        readers = registry.Readers(self._clock, assembly.engine, nothing, nothing)
        assembly = replace(assembly, connectors=readers, endpoints=tuple(registry.DRIVERS))
        self.core: Core = self.run(Core.open(assembly, Config(take_over=True), Mode.FULL))

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project; an empty text deletes."""
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text:
                path.write_text(text)
            else:
                path.unlink()

    def edit(self, name: str, before: str, after: str) -> None:
        """Write ``after`` for ``before`` in a file."""
        text = (self.root / name).read_text()
        assert before in text
        self.write({name: text.replace(before, after, 1)})

    @property
    def project(self) -> Project:
        """The project as its files say, as far as they can be understood."""
        return load(self.root, whole=False)

    @property
    def catalog(self) -> Catalog:
        """The catalog as it is kept."""
        return self.run(self.core.catalogs.newest())

    def plan(self, *, drop: Sequence[str] = ()) -> dict[str, Any]:
        """The plan, which changes nothing."""
        before = self.catalog
        found: dict[str, Any] = self.run(deployment(self.core, self.project, {}, drop))
        assert self.catalog == before
        return found

    def wrong(self) -> list[str]:
        """What the plan refuses."""
        return [each["why"] for each in self.plan()["changes"] if each["what"] == "refused"]

    def deploy(self, *drop: str) -> dict[str, Any]:
        """Apply the project."""
        return self.run(deploy(self.core, self.project, {}, drop=drop))

    def execute(self, sql: str) -> None:
        """Create something as a client does, outside the project's files."""
        self.run(create(self.core, cast("Any", parse(sql))))

    def note(self, *words: str) -> None:
        """Insert notes, and tick until the endpoints have them."""
        output, engine = self.core.table("notes"), self.core.assembly.engine
        made = self._clock.now
        rows = [{"id": made + number, "word": word} for number, word in enumerate(words)]
        types = {"id": pa.int32(), "word": pa.string()}
        table = pa.Table.from_pylist(
            rows, pa.schema([(each, types.get(each, pa.int32())) for each in output.schema.names])
        )
        contents = self.run(engine.local(table, output.schema, time=0, diff=1))
        self.run(self.core.commit([Change(output, contents, False, len(rows))], None))
        self.tick()

    def tick(self) -> None:
        """Tick twice, a second apart."""
        for _ in range(2):
            self._clock.now += 1_000
            self.run(self.core.tick())

    def pushed(self, file: str = "out.db", table: str = "counts") -> list[tuple[Any, ...]]:
        """The rows of an endpoint's table."""
        with closing(sqlite3.connect(self.root / file)) as database:
            return sorted(database.execute(f"SELECT * FROM {table}").fetchall())
