"""From files that have landed to a durable collection, beside plain Spark that reads them and writes Parquet.

Of each format there is a folder of its own.  In each round both sides have their turn: ours lists, decodes, appends and
commits in one tick of a new environment.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.sources.beside import COLUMNS, ROUNDS, Turns, taken, texts, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 1_000_000
FILES: Final = 40
FORMATS: Final = ("json", "parquet")


def measure_files(
    session: SparkSession, directory: Path, *, rows: int = ROWS, files: int = FILES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Write the files, read them with both, and return the figures of each format (`Turns.figures`)."""
    landed = _landed(session, directory / "landed", rows, files)
    found: dict[str, Any] = {"rows": rows, "files": files}
    for form, folder in landed.items():
        turns = Turns(rows)
        source = (
            f"CREATE SOURCE events ({COLUMNS}) FROM FILES (path = '{folder}/*.{form}', format = '{form}', settle = '0')"
        )
        for number in range(rounds + 1):
            into = directory / f"{form}-{number}"
            turns.ours.append(asyncio.run(taken(session, into / "ours", source)))
            begun = time.perf_counter()
            read = session.read.schema(COLUMNS).format(form).load(str(folder))
            turns.spark.append(written(session, read, into / "spark", begun))
        found[form] = turns.figures()
    return found


def _landed(session: SparkSession, into: Path, rows: int, files: int) -> dict[str, Path]:
    """Write the same rows in each format; return the folders."""
    folders = {form: into / form for form in FORMATS}
    folders["json"].mkdir(parents=True)
    bounds = [rows * number // files for number in range(files + 1)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        with (folders["json"] / f"{number:04}.json").open("w") as file:
            file.writelines(f"{text}\n" for text in texts(range(first, end)))
    read = session.read.schema(COLUMNS).json(str(folders["json"]))
    read.repartition(files).write.parquet(str(folders["parquet"]))
    return folders
