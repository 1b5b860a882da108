"""What a catalog has got otherwise, as the log of the process that writes says it.  Over lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import pytest
from deployed import Deployed

from strandline.controller.defining.altering import alter
from strandline.controller.defining.changing.replacing import drop
from strandline.controller.language.statements import parse
from strandline.controller.observing.adopted import adopted

READING: Final = {"s", "read", "m"}
"""What is dropped and created again with the source, from which it is made."""


class Log:
    """The lines about what others have defined at a location since they were read last."""

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self._before = deployed.catalog

    def alter(self, sql: str) -> None:
        """Alter something as a client does."""
        self._deployed.run(alter(self._deployed.core, cast("Any", parse(sql))))

    def drop(self, sql: str) -> None:
        """Drop something as a client does."""
        self._deployed.run(drop(self._deployed.core, cast("Any", parse(sql))))

    def lines(self) -> list[str]:
        """What was adopted, in words."""
        before, self._before = self._before, self._deployed.catalog
        return [" ".join([each.event, *each.facts.values()]) for each in adopted(before, self._before)]


@pytest.fixture
def deployed(tmp_path: Path) -> Deployed:
    """A location that is as its project says."""
    return Deployed(tmp_path)


@pytest.fixture
def log(deployed: Deployed) -> Log:
    """The log from then on."""
    return Log(deployed)


def test_each_definition_that_another_process_makes_is_named(deployed: Deployed, log: Log) -> None:
    """Damage: a column or a view comes into a running environment, and its log cannot say since when."""
    deployed.execute("CREATE TABLE more (k INT)")
    assert log.lines() == ["applied more"]
    log.alter("ALTER TABLE more ADD COLUMN note STRING")
    assert log.lines() == ["evolved more note string"]
    log.alter("ALTER SOURCE s ADD COLUMN note STRING")
    assert log.lines() == ["evolved s note string"]
    log.alter("ALTER MATERIALIZATION m ADD VIEW many KEY (word)")
    assert log.lines() == ["altered m view 'many'"]
    log.alter("ALTER MATERIALIZATION m DROP VIEW many KEEP ROWS")
    assert log.lines() == ["altered m view 'many' no longer"]
    log.alter("ALTER MATERIALIZATION m SET (every '5s')")
    assert log.lines() == ["altered m every '5s'"]
    log.alter("ALTER MATERIALIZATION m RESET (every)")
    assert log.lines() == ["altered m no every"]
    log.alter("ALTER TABLE more SET KEEP HISTORY FOR '1 day'")
    assert log.lines() == ["altered more KEEP HISTORY FOR '1 day'"]
    log.alter("ALTER TABLE more RENAME TO less")
    assert log.lines() == ["renamed more less"]
    log.drop("DROP TABLE less")
    assert log.lines() == ["applied less"]
    assert log.lines() == []


def test_what_a_project_changes_is_named_in_the_same_way(deployed: Deployed, log: Log) -> None:
    """Damage: of a definition that was applied by its file the log says less than of one by a statement."""
    deployed.edit("sources/s.sql", "word STRING)", "word STRING, note STRING)")
    deployed.edit("materializations/m.yml", "collections:\n", "collections:\n  - collection: read\n    key: [id]\n")
    deployed.write({"views/next.sql": "CREATE MATERIALIZED VIEW next AS SELECT id FROM notes"})
    deployed.deploy()
    assert log.lines() == ["applied next", "evolved s note string", "altered m view 'read'"]
    deployed.edit("sources/s.sql", "'true'", "'false'")
    assert deployed.deploy("s")["refused"] == []
    gone, come, *others = log.lines()
    assert ({*gone.split()[1].split(",")}, {*come.split()[1].split(",")}) == (READING, READING)
    assert others == []


def test_what_no_one_has_defined_is_not_said(deployed: Deployed, log: Log) -> None:
    """Damage: the log says of a view that it was created again, because its replacement is in place."""
    deployed.note("a", "a")
    assert log.lines() == []
    deployed.edit("views/many.sql", "SELECT word, n", "SELECT word, n, n + 1 AS more")
    deployed.deploy()
    assert log.lines() == ["replacing many"]
    deployed.tick()
    assert log.lines() == []
