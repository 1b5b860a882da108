"""`strandline status --watch`: blocks with rates, until Ctrl-C; and what the exit status of `status` says."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

import pytest

from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.output import Output
from strandline.cli.terminal.standing import left_out, parts, stands_still, waiting, watch
from strandline.errors import Unavailable


def status(rows: int = 0, **problems: str) -> dict[str, Any]:
    """What `env.status` says of a source that has read some rows."""
    source = {
        "kind": "source",
        "phase": "following",
        "first": None,
        "lag": {"ms": 1_500, "rows": None, "bytes": 2_048},
        "since": 0,
        "upper": 1_700_000_000_500,
        "updates": rows,
        "parts": 1,
        "errors": {"rows": 0, "first": [], "since": None},
        "notices": ["upstream has columns that are not read"],
        "waiting": "it waits for file 'a.csv'",
        "problem": problems.get("s"),
        "durable_records": rows,
    }
    view = {**source, "kind": "view", "notices": [], "waiting": None, "last_step": {"rows": 40, "ms": 12}}
    return {
        "epoch": 3,
        "holder": None,
        "holder_lives": None,
        "collections": {"s": source, "v": {name: each for name, each in view.items() if name != "durable_records"}},
        "sources": {},
        "materializations": {},
        "instances": {},
        "next": None,
        "persist": {},
        "writer_persist": None,
        "waiting": {"s": "it waits for file 'a.csv'"},
        "problems": problems,
    }


def shown(capsys: pytest.CaptureFixture[str], found: dict[str, Any]) -> str:
    """What people see of a status."""
    output = Output(json=False)
    for part in (*parts(found, output.console.width), *waiting(found)):
        output.console.print(part)
    return capsys.readouterr().out


def test_lags_times_costs_and_what_waits_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: bytes are taken for rows, a number of 13 digits for nothing, and no one sees what waits, and why."""
    said = shown(capsys, status())
    assert "1.5 s, 2,048 bytes" in said
    assert "2023-11-14T22:13:20.500Z (1700000000500)" in said
    assert "12 ms, 40 rows" in said
    assert "waiting: s: it waits for file 'a.csv'\n" in said
    begins = status()
    begins["collections"]["s"]["first"] = {"rows": 3_000, "about": 12_000, "ms": 9_000}
    assert "waiting: s: it waits for file 'a.csv': 3,000 of about 12,000 rows, for 9.0 s\n" in shown(capsys, begins)
    assert "notice: s: upstream has columns that are not read" in said


def test_what_stands_still_has_an_exit_status_of_its_own() -> None:
    """Damage: a supervisor or a script takes an environment in which nothing moves for a healthy one."""
    assert Exit.STANDS_STILL == 5
    assert stands_still(status(s="the upstream is away"))
    assert not stands_still(status())


def test_watching_shows_rates_goes_on_after_an_outage_and_ends_with_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: the watch ends when the writer is started again; or Ctrl-C is a failure with a traceback."""
    looks = iter([status(0), Unavailable("the writer is away"), status(1_000_000), KeyboardInterrupt()])

    def look() -> dict[str, Any]:
        found = next(looks)
        if isinstance(found, BaseException):
            raise found
        return found

    watch(look, Output(json=False), 0.01)
    said = capsys.readouterr()
    _, first, second = said.out.split("generation 3")
    assert "rows/s" not in first
    assert "rows/s" in second
    assert said.err == "strandline: the writer is away\n"


def test_a_signal_ends_the_watch_after_the_look_that_it_meets(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: Ctrl-C breaks a look off in the middle, and the process waits for what is half closed for ever."""
    done, before = [], signal.getsignal(signal.SIGINT)

    def look() -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        done.append(True)  # reached: nothing was raised in the middle
        return status(1)

    watch(look, Output(json=False), 60)
    assert done == [True]
    assert capsys.readouterr().out.count("generation 3") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_breaks_a_look_off() -> None:
    """Damage: over a store that is silent, Ctrl-C does nothing for a minute, however often it is pressed."""

    def look() -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")

    watch(look, Output(json=False), 60)


def test_what_an_answer_leaves_out_is_said() -> None:
    """Damage: a sum is taken for the whole, though rows of a source beneath a view could not be decoded."""
    found = status()
    found["collections"]["s"] |= {"errors": {"rows": 2, "first": [], "since": 5}, "errors_max": None}
    found["collections"]["v"]["imports"] = ["S"]
    warning = "s has 2 undecodable records, which the answer leaves out; `strandline source skip s` lists them"
    assert left_out(found, "SELECT sum(n) FROM V") == [warning]
    assert left_out(found, "SELECT 's ' || w FROM other") == [warning], "it may say too much, and never too little"
    assert left_out(found, "SELECT 1 AS n") == []
    assert left_out(status(), "SELECT * FROM v") == []


def test_watching_as_documents(capsys: pytest.CaptureFixture[str]) -> None:
    """Damage: a program that reads the documents meets text."""
    looks = iter([status(1), status(2)])

    def look() -> dict[str, Any]:
        try:
            return next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None

    watch(look, Output(json=True), 0.01)
    assert [line[:10] for line in capsys.readouterr().out.splitlines()] == ['{"epoch":3'] * 2
