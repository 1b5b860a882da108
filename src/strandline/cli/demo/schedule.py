"""The steps of the demo: which files arrive, which changes are made, and when the process is killed.

A step is: files arrive (each by an atomic rename), statements are run, one tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strandline.cli.demo.data import YEAR, Day, Flights

DECEMBER: Final = 12
MONTHS_BEFORE: Final = 11
DAYS: Final = 31
CORRECTED_DAY: Final = 10
CORRECTED_DAYS_LATER: Final = 2
RENAMED: Final = ("9E", "Pinnacle Airlines")
"""One airline gets the name it had before."""
RENAME: Final = "UPDATE airlines SET name = 'Pinnacle Airlines' WHERE carrier = '9E'"
assert all(repr(word) in RENAME for word in RENAMED)
DELAY_CORRECTION: Final = -3
"""The corrected day's arrival delays were this many minutes too high."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.  ``files``: ``(source, name, content)``; ``kill``: the process is killed while the step is running."""

    name: str
    files: tuple[tuple[str, str, str], ...]
    rows: int
    statements: tuple[str, ...] = ()
    kill: bool = False


def schedule(data: Flights, *, days: int = DAYS, months: int = MONTHS_BEFORE) -> list[Step]:
    """Return the steps: the ``months`` before December in one, then its first ``days`` one by one."""
    assert 1 <= days <= DAYS
    assert 1 <= months <= MONTHS_BEFORE
    corrected = min(CORRECTED_DAY, days)
    corrected_in = min(corrected + CORRECTED_DAYS_LATER, days)
    steps = [_before(data, months)]
    for day in range(1, days + 1):
        files = list(_of_day(data, day))
        if day == corrected_in:
            files += _correction(data, (DECEMBER, corrected))
        statements = (RENAME,) if day == (days + 2) // 3 else ()
        steps.append(Step(f"December {day}", tuple(files), _rows(files), statements, kill=day == (days + 1) // 2))
    return steps


def _before(data: Flights, months: int) -> Step:
    files = [("airports", "airports.csv", data.airports), ("planes", "planes.csv", data.planes)]
    for month in range(DECEMBER - months, DECEMBER):
        for source, lines in (("flights", data.flights), ("weather", data.weather)):
            files.append((source, f"{YEAR}-{month:02}.csv", lines.file(lines.month(month))))
    return Step(f"the {months} months before", tuple(files), _rows(files))


def _of_day(data: Flights, day: int) -> Iterator[tuple[str, str, str]]:
    for source, lines in (("flights", data.flights), ("weather", data.weather)):
        yield source, f"{YEAR}-{DECEMBER}-{day:02}.csv", lines.file(lines.of((DECEMBER, day)))


def _correction(data: Flights, day: Day) -> list[tuple[str, str, str]]:
    """Return the day's old rows, to retract, and its new rows."""
    lines = data.flights.of(day)
    column = data.flights.header.split(",").index("arr_delay")
    name = f"{YEAR}-{day[0]}-{day[1]:02}"
    corrected = tuple(_shifted(line, column) for line in lines)
    return [
        ("flights", f"{name}.retract.csv", data.flights.file(lines)),
        ("flights", f"{name}.corrected.csv", data.flights.file(corrected)),
    ]


def _shifted(line: str, column: int) -> str:
    """Return the line with the corrected delay.

    >>> _shifted("a,11,b", 1), _shifted("a,NA,b", 1)
    ('a,8,b', 'a,NA,b')
    """
    fields = line.split(",")
    if fields[column] != "NA":
        fields[column] = str(int(fields[column]) + DELAY_CORRECTION)
    return ",".join(fields)


def _rows(files: list[tuple[str, str, str]]) -> int:
    return sum(content.count("\n") - 1 for _, _, content in files)
