"""What is typed is cut into commands and statements where their author meant it, and an error points at its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from strandline.cli.shell import commands
from strandline.cli.shell.commands import Command
from strandline.cli.shell.completion import coloured, finished, parts, pointed, typed
from strandline.errors import InvalidUsage, Position


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT ';", False),
        ("SELECT ';'", False),
        ("SELECT ';';", True),
        ("SELECT `a;", False),
        ("SELECT 1 -- done;", False),
        ("SELECT 1 /* done;", False),
        ("SELECT 1; -- done", True),
        ("SELECT 1; SELECT 2", False),
        ("-- a comment", False),
        ("", True),
        (r"\d sales", True),
    ],
)
def test_enter_runs_what_is_finished_and_goes_on_with_what_is_not(text: str, *, done: bool) -> None:
    """Damage: half a statement is run; or a person cannot get out of a finished one."""
    assert finished(text) is done


def test_commands_stand_before_statements_and_positions_are_of_the_whole_text() -> None:
    """Damage: an error points at the wrong line."""
    assert typed("\\x\n  \\timing\nSELECT 1;\n SELECT '\\d';") == [
        "\\x",
        "\\timing",
        "\n\nSELECT 1",
        "\n\n\n SELECT '\\d'",
    ]


@given(st.text("ab 漢\t", min_size=1, max_size=200), st.integers(1, 220), st.integers(45, 120))
def test_the_mark_is_under_the_place_and_within_the_terminal(line: str, column: int, width: int) -> None:
    """Damage: the mark is on the next line of the terminal, or under another word."""
    shown, mark = pointed(f"first\n{line}", Position(2, column), width)
    assert shown.startswith("LINE 2: ")
    if line.isascii():
        assert max(cell_len(shown), cell_len(mark.rstrip("^")) + 1) <= width
        if column <= len(line):
            assert shown[len(mark) - mark.count("^")] == line.replace("\t", " ")[column - 1]


@given(st.text("selct 'a`\"-/*;\n\\x01", max_size=40))
def test_colours_change_nothing_but_colours(text: str) -> None:
    """Damage: what is shown is not what was typed."""
    assert "".join(piece for _, piece in parts(text)) == text
    assert coloured(text).plain == "".join(sign for sign in text)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (r"\d", Command(r"\d", "")),
        (r"\d `a b` ;", Command(r"\d", "`a b`")),
        (r"\dv;", Command(r"\dv", "")),
        (r"\i /tmp/a b.sql", Command(r"\i", "/tmp/a b.sql")),
        (r"\help", Command(r"\?", "")),
    ],
)
def test_a_command_is_read(line: str, command: Command) -> None:
    """Damage: a habit of psql does something else here."""
    assert commands.read(line) == command


def test_a_command_that_there_is_not_names_the_nearest() -> None:
    """Damage: a person who mistypes is on their own."""
    with pytest.raises(InvalidUsage, match=r"there is no command \\wacth; did you mean \\watch\? \\\? lists all"):
        commands.read(r"\wacth 5")


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (commands.limited, "50", 50),
        (commands.limited, "off", None),
        (lambda command: commands.seconds(command, 2.0), "", 2.0),
        (lambda command: commands.seconds(command, 2.0), "0.5", 0.5),
        (lambda command: commands.switched(command, False), "", True),
        (lambda command: commands.switched(command, True), "off", False),
    ],
)
def test_a_command_takes_what_its_help_says(read: object, text: str, found: object) -> None:
    """Damage: a documented argument is refused."""
    assert callable(read)
    assert read(Command(r"\x", text)) == found


@pytest.mark.parametrize(
    "read", [commands.limited, lambda c: commands.seconds(c, 2.0), lambda c: commands.switched(c, False)]
)
@pytest.mark.parametrize("text", ["maybe", "-1", "nan"])
def test_another_argument_is_refused(read: object, text: str) -> None:
    """Damage: a mistyped argument does something."""
    assert callable(read)
    with pytest.raises(InvalidUsage, match=text):
        read(Command(r"\x", text))
