"""docs/install.md: its tables name every extra and every check, and what its commands say exists."""

from __future__ import annotations

import inspect
import re

from dockerfile import ROOT, command, stages
from strandline.cli.doctor import command as doctoring
from strandline.cli.doctor import machine, places, servers
from strandline.cli.doctor.servers import CONNECT_SECONDS_MAX
from strandline.connections.logins import LOGIN_SECONDS_MAX
from strandline.extras import MODULES

PAGE = (ROOT / "docs" / "install.md").read_text()


def first_column(head: str) -> set[str]:
    """Return the names in the first column of the table that begins so."""
    table = PAGE.partition(head)[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_page_has_every_extra() -> None:
    """Damage: a user cannot find out what to install for Kafka."""
    assert first_column("| extra |") == {*MODULES, "all"}


def test_the_page_has_every_check() -> None:
    """Damage: an operator reads a line of `doctor` that no page explains."""
    text = "".join(map(inspect.getsource, (doctoring, machine, machine, places, places, servers)))
    assert first_column("| check |") | {"reference"} == set(
        re.findall(r"\b(?:ok|missing|wrong)\(\s*\"([^\"]+)\"", text)
    )


def test_the_page_makes_the_wheel_as_the_image_does() -> None:
    """Damage: the command of the page makes a wheel that no test has run."""
    (said,) = re.findall(r"`(pip wheel [^`]+)`", PAGE)
    made = command(stages()[0], "python -m pip wheel .").replace("/wheels", "dist")
    assert made.removeprefix("python -m ") == f"{said} --no-build-isolation"  # which a user's pip has no need of


def test_the_arguments_of_the_build_are_those_of_the_image() -> None:
    """Damage: the argument is ignored with a warning, and the container cannot write the project."""
    declared = {each.text.partition("=")[0] for stage in stages() for each in stage if each.name == "ARG"}
    assert set(re.findall(r"--build-arg (\w+)=", PAGE)) == declared
    assert set(re.findall(r"--build-arg (\w+)=", (ROOT / "Dockerfile").read_text())) == declared


def test_the_page_says_how_long_a_server_is_waited_for() -> None:
    """Damage: `doctor` is taken for a program that hangs."""
    assert "it waits one second for a connection, and three for an answer to a login" in PAGE
    assert (CONNECT_SECONDS_MAX, LOGIN_SECONDS_MAX) == (1, 3)
