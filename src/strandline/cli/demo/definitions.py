"""The demo's project, as files: four sources, a table, three views, and the DuckDB and SQLite files that follow."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from strandline.engine.session.start import SHORT_LIVED_JAVA

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
