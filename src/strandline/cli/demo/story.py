"""`strandline demo`: the whole demo, from an empty directory to the proof."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from strandline.cli.demo import data, proof
from strandline.cli.demo.child import Child
from strandline.cli.demo.data import INCOMING, RENAMED, Flights, Step, schedule, write_project
from strandline.cli.demo.worker import Execute, Insert, Tick
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.opening import keep_apart
from strandline.cli.terminal.output import Output
from strandline.errors import ConfigError

Advance: TypeAlias = Callable[[str], None]

KILL_AFTER_S: Final = 0.5
"""How long after the request the process is killed: during a step, because steps take longer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The size and place of the demo; ``directory`` None: a new temporary one."""

    directory: Path | None
    days: int
    months: int


@dataclass
class Course:
    """What happened in the demo."""

    seconds: list[float] = field(default_factory=list)
    rows: int = 0
    ticks: int = 0
    restarts: int = 0
    killed: bool = False
    reread: int = 0


def demo(wanted: Wanted, output: Output) -> Exit:
    """Run the demo and print its results; the last line is the verdict."""
    begun = time.monotonic()
    root = _fresh(wanted.directory)
    keep_apart()
    output.note(f"the project is in {root}")
    flights = data.load()
    steps = schedule(flights, days=wanted.days, months=wanted.months)
    write_project(root)
    course = Course()
    with _progress(output, len(steps) + 1) as advance:
        _run(root, flights, steps, course, advance)
        advance("the proof: plain Spark over the raw files")
        carrier, name = RENAMED
        with proof.plain_spark(root) as plain:
            views, tables = proof.prove(plain, root, {**flights.airlines, carrier: name})
    document = _document(course, views, tables, time.monotonic() - begun, root)
    for each, side in [*((v, "view") for v in views), *((t, "table") for t in tables)]:
        if each.count:
            output.note(f"{side} {each.what}: {each.missing} rows missing, {each.extra} extra")
    output.note(
        f"{document['rows']} rows, {course.ticks} ticks, killed and started again {course.restarts} times; first step "
        f"{document['first_step_seconds']} s, a day's step {document['median_step_seconds']} s (median); "
        f"{document['seconds']} s in all"
    )
    output.result(document, last_line(document))
    return Exit.DIFFERENCE if document["differences"] else Exit.OK


def last_line(document: dict[str, Any]) -> str:
    """Return the demo's last line.

    >>> last_line({"views_verified": 3, "tables_verified": 4, "differences": 0})
    'demo: 3 views verified, 4 tables verified, 0 differences'
    """
    return (
        f"demo: {document['views_verified']} views verified, {document['tables_verified']} tables verified, "
        f"{document['differences']} differences"
    )


def _run(root: Path, flights: Flights, steps: Sequence[Step], course: Course, advance: Advance) -> None:
    with Child(root) as child:
        rows = [{"carrier": carrier, "name": name} for carrier, name in flights.airlines.items()]
        child.ask(Insert("airlines", rows, token="airlines of the package"))  # noqa: S106  # an idempotency token
        course.rows += len(rows)
        for step in steps:
            advance(step.name)
            for source, name, content in step.files:
                arrive(root / INCOMING / source / name, content)
            for statement in step.statements:
                child.ask(Execute(statement))
            if step.kill:
                course.killed = child.kill_during(Tick(), KILL_AFTER_S)
                child.restart()
            answer = child.ask(Tick())
            course.ticks += 1
            course.rows += step.rows
            course.seconds.append(answer.seconds)
            if problems := answer.progress["problems"]:
                raise ConfigError("; ".join(f"{name}: {problem}" for name, problem in sorted(problems.items())))
            course.reread = sum(source["reread_records"] for source in answer.progress["sources"].values())
        course.restarts = child.restarts


def arrive(path: Path, content: str) -> None:
    """Create a file atomically."""
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(content)
    unfinished.rename(path)


def _document(
    course: Course, views: list[proof.Difference], tables: list[proof.Difference], seconds: float, root: Path
) -> dict[str, Any]:
    return {
        "views_verified": sum(not view.count for view in views),
        "tables_verified": sum(not table.count for table in tables),
        "differences": sum(each.count for each in (*views, *tables)),
        "seconds": round(seconds, 1),
        "rows": course.rows,
        "ticks": course.ticks,
        "restarts": course.restarts,
        "killed_in_a_step": course.killed,
        "reread_records": course.reread,
        "first_step_seconds": round(course.seconds[0], 2),
        "median_step_seconds": round(statistics.median(course.seconds[1:]), 2),
        "step_seconds": [round(each, 2) for each in course.seconds],
        "directory": str(root),
    }


def _fresh(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="strandline-demo-"))
    root = directory.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the directory {str(root)!r} cannot be made: {error.strerror}") from error
    if any(root.iterdir()):
        raise ConfigError(f"the directory {str(root)!r} is not empty; the demo needs a fresh one")
    return root


@contextmanager
def _progress(output: Output, steps: int) -> Iterator[Advance]:
    """Show a bar on a terminal, else a line per step; call the yielded function when a step begins."""
    if not output.progress.is_terminal:
        yield lambda name: output.log("step", name=name)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=output.progress) as bar:
        task = bar.add_task("starting", total=steps, completed=-1)

        def advance(name: str) -> None:
            bar.update(task, advance=1, description=name)

        yield advance
        bar.update(task, completed=steps, description="done")
