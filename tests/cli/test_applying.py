"""`strandline plan` and `strandline apply`: what they say, how they end, and what they drop.  Over lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from deployed import Deployed

from strandline.cli import main
from strandline.cli.promoting import REFUSED, apply
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output


class Asked:
    """What a command asks: the environment of a `Deployed`."""

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing: the next command asks the same."""

    def deploy(self, directory: Path, *, apply: bool = False, drop: Sequence[str] = ()) -> dict[str, Any]:
        """See `Environment.deploy`."""
        assert directory == self._deployed.root
        return self._deployed.deploy(*drop) if apply else self._deployed.plan(drop=drop)


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """A location that is as its project says, and whose environment commands ask."""
    found = Deployed(tmp_path)
    for name in ("changing", "reading"):
        monkeypatch.setattr(Opener, name, lambda *_, **__: Asked(found))
    return found


def test_a_plan_with_mistakes_says_them_all_and_ends_with_status_1(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: a pipeline of commits goes on to apply what cannot be applied."""
    command = ["plan", "--project", str(deployed.root)]
    assert main(command) == Exit.OK
    assert capsys.readouterr().out == "the location is as the project says\n"
    deployed.edit("sources/s.sql", "header", "headr")
    deployed.edit("views/many.sql", "SELECT", "SELEKT")
    assert main(command) == Exit.FAILED
    said = capsys.readouterr().out
    assert "did you mean 'header'? (at line 2, column 42)" in said
    assert "views/many.sql: expected a query, found 'SELEKT' (at line 1, column 34)" in said


def test_apply_says_each_refusal_once(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: its reader looks for the difference between two long sentences that are the same."""
    deployed.edit("sources/s.sql", "header", "headr")
    deployed.edit("views/many.sql", "SELECT", "SELEKT")
    command = ["apply", "--project", str(deployed.root), "--drop", "all"]
    assert main(command) == Exit.FAILED
    told = capsys.readouterr()
    for reason in ("did you mean 'header'? (at line 2, column 42)", "views/many.sql: expected a query, found 'SELEKT'"):
        assert (told.out + told.err).count(reason) == 1
    assert told.err == f"{REFUSED}\n"
    assert main([*command, "--json"]) == Exit.FAILED
    told = capsys.readouterr()
    (document,) = map(msgspec.json.decode, told.out.splitlines())
    assert document["created"] == []
    assert told.err.count("views/many.sql: ") == 1


def test_names_of_what_is_dropped_are_given_one_by_one(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: to let one item go, all others that are in the way go too."""
    command = ["apply", "--project", str(deployed.root)]
    deployed.edit("tables/notes.sql", "(id INT", "(extra INT, id INT")
    deployed.edit("sources/s.sql", "'true'", "'false'")
    assert main([*command, "--drop", "notes"]) == Exit.FAILED
    told = capsys.readouterr()
    assert "'s': it was created with other options: header 'true' → 'false'" in told.err
    assert "nothing has changed" in told.out
    assert main([*command, "--drop", "nots"]) == Exit.FAILED
    told = capsys.readouterr()
    assert "there is no item 'nots'; did you mean 'notes'" in told.err
    assert main([*command, "--drop", "notes", "--drop", "s", "--json"]) == Exit.OK
    done = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1])
    assert {"notes", "s"} <= set(done["dropped"])
    assert set(done["dropped"]) == set(done["created"])
    assert main(["plan", *command[1:]]) == Exit.OK


def test_who_says_yes_has_what_differs_made_again_with_its_readers(deployed: Deployed) -> None:
    """Damage: the answer to a question of the command is refused by the command, which names a view that is right."""
    asked: list[str] = []

    def yes(question: str) -> bool:
        asked.append(question)
        return True

    deployed.edit("sources/s.sql", "'true'", "'false'")
    assert apply(Opener(), deployed.root, drop=(), ask=yes, output=Output(json=False)) is Exit.OK
    assert asked == ["drop materialized view read, source s, and all that they hold?"]
    assert deployed.plan()["changes"] == []


def test_the_command_that_a_plan_names_does_what_it_says(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage: who copies the command from the plan gets an error, and another command from that."""
    deployed.execute("CREATE MATERIALIZED VIEW mine AS SELECT word FROM counts")
    deployed.write({"views/counts.sql": "", "views/many.sql": "", "materializations/m.yml": ""})
    assert main(["plan", "--project", str(deployed.root)]) == Exit.OK
    named = capsys.readouterr().out.partition("`strandline apply ")[2].partition("`")[0].split()
    assert named == ["--drop", "all", "--drop", "mine"]
    assert main(["apply", "--project", str(deployed.root), "--drop", "all"]) == Exit.FAILED
    assert "--drop all --drop mine` drops mine" in capsys.readouterr().out
    assert main(["apply", "--project", str(deployed.root), *named]) == Exit.OK
    assert deployed.catalog.items.keys().isdisjoint({"counts", "many", "m", "mine"})
