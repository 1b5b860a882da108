"""A notice that its operator has acknowledged is said no longer, until the same kind of thing happens anew."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.controller.ways.site import Site, follow
from tests.controller.ways.test_files import OLD_NS, Lines

from strandline.algebra.messages import DatedFile, FileFormat
from strandline.algebra.schema import DIFF, TIME, Schema
from strandline.controller.introspection.relations import RELATIONS, Known
from strandline.controller.observing.figures import figures
from strandline.errors import DefinitionError, InvalidUsage
from strandline.persist.handles.contents import Rows
from strandline.testing.lists.list_engine import updates


class First(Lines):
    """A decoder of files whose first column is read."""

    async def decode(self, files: Sequence[DatedFile], schema: Schema, form: FileFormat, *, locate: bool) -> Rows:
        """See `FileDecoder.decode`."""
        lines = [(line, file) for file in files for line in Path(file.path).read_text().splitlines()[1:]]
        return updates(schema, [{"n": int(line.split(",")[0]), TIME: f.time, DIFF: f.diff} for line, f in lines])


def arrive(site: Site, name: str, header: str, *lines: str) -> dict[str, Any]:
    """Have a file arrive, and be read; return the status."""
    path = site.root / "in" / name
    path.write_text("".join(f"{line}\n" for line in (header, *lines)))
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return site.tick()


def notices(site: Site, status: dict[str, Any], name: str = "Shop") -> list[str]:
    """Return the notices that status says of a source, and see that all that show them say the same."""
    found = status["collections"][name]["notices"]
    assert figures(site.core)["items"][name]["notices"] == found
    assert site.env.progress()["notices"].get(name.lower(), []) == found
    rows = RELATIONS["states"].rows(Known(status, site.core.catalog, {}))
    assert [row[-1] for row in rows if row[0] == name and row[-2] == "notice"] == found
    return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A source whose last file has a column that is not read: that is a notice."""
    at = Site(tmp_path, First())
    (tmp_path / "in").mkdir()
    at.execute(f"CREATE SOURCE Shop (n BIGINT) FROM files (path '{tmp_path}/in/*.csv', settle '0')")
    arrive(at, "a.csv", "n", "1")
    assert "`wide`" in notices(at, arrive(at, "b.csv", "n,wide", "2,x"))[0]
    yield at
    at.env.close()


def test_an_acknowledged_notice_is_said_no_longer_after_a_restart_too(site: Site) -> None:
    """Damage: `status` says for ever what its operator knows, and what is new drowns in it."""
    (said,) = site.env.status()["collections"]["Shop"]["notices"]
    assert site.env.acknowledge("shop") == {"acknowledged": {"Shop": [said]}}
    assert notices(site, site.env.status()) == []
    assert site.env.acknowledge() == site.env.acknowledge("shop") | {"acknowledged": {}}
    site.reopen()
    assert notices(site, arrive(site, "c.csv", "n,wide", "3,y")) == []
    assert len(site.rows("Shop")) == 3


def test_the_same_kind_of_thing_is_said_when_it_happens_anew(site: Site) -> None:
    """Damage: a column is lost because its source once lacked another one."""
    site.env.acknowledge()
    (said,) = notices(site, arrive(site, "c.csv", "n,wide,high", "3,y,z"))
    assert "`high`" in said
    site.env.acknowledge("Shop")
    assert notices(site, arrive(site, "d.csv", "n", "4")) == []
    assert notices(site, arrive(site, "e.csv", "n,wide", "5,x")), "it was over, and has come again"


def test_what_is_made_anew_under_the_name_is_another_item(site: Site) -> None:
    """Damage: the columns of a source that someone else defines years later are not read, and no one learns it."""
    site.env.acknowledge()
    site.execute("DROP SOURCE Shop")
    site.execute(f"CREATE SOURCE Shop (n BIGINT) FROM files (path '{site.root}/in/*.csv', settle '0')")
    site.tick()
    assert notices(site, arrive(site, "c.csv", "n,wide", "3,y"))


def test_only_notices_are_acknowledged(site: Site) -> None:
    """Damage: an operator takes a source for mended that stands still."""
    (site.root / "other").mkdir()
    site.execute(f"CREATE SOURCE gone (n BIGINT) FROM files (path '{site.root}/other/*.csv', settle '0')")
    site.tick()
    (site.root / "other").rmdir()
    assert "gone" in site.tick()["problems"]
    with pytest.raises(InvalidUsage, match="has a problem, and only notices can be acknowledged: .*does not exist"):
        site.env.acknowledge("gone")
    with pytest.raises(DefinitionError, match="there is no item 'shp'; did you mean 'shop'"):
        site.env.acknowledge("shp")


def test_the_command_acknowledges(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: who has a terminal alone cannot acknowledge."""
    follow(site.env, "strandline acknowledge shop --json", monkeypatch)
    assert notices(site, site.env.status()) == []
    follow(site.env, "strandline acknowledge --all", monkeypatch)
    for wrong in ("strandline acknowledge", "strandline acknowledge shop --all"):
        with pytest.raises(AssertionError, match="name an item, or give --all"):
            follow(site.env, wrong, monkeypatch)
