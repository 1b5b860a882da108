"""`strandline bench create`: how long CREATE of a layered view takes, beside plain Spark, and who waits meanwhile.

The view is one as dbt projects write them: six tables, each renamed and adjusted in a chain of WITH clauses, joined,
enriched in another chain, with three correlated subqueries on top.  Plain Spark plans the same query over tables of the
same columns, in the same session.  The first CREATE in a JVM is compared with the first planning there, and a later one
with the quickest.  While another CREATE runs, one program asks and another one ticks: the longest of their calls says
how long everybody waits.  The first view is ticked twice, and compared with plain Spark's answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

from strandline import client as programs
from strandline.bench.measured import seconds
from strandline.client import Environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAUSES: Final = (29, 60)
"""The fewest that there can be, and twice as many."""
CLAUSES_MIN: Final = 29
TABLES: Final = {"w": 5, "d": 6, "c": 10, "o": 8, "l": 8, "h": 6}
"""How many columns each table has; the last one is a double."""
_CHAINS: Final = {"w": 3, "d": 3, "c": 4, "o": 3, "l": 3, "h": 3, "f": 5}
_WIDE: Final = {"o": 0, "c": 3, "d": 2, "w": 1, "l": 3}
"""From which column on each table is carried through the second chain."""
_PLANNED: Final = 3
"""So many times plain Spark plans the query; the least counts."""
_AGAIN: Final = 2
"""So many times the view is created when Spark's code is warm; the least counts, as it does of plain Spark."""
_PAUSE_S: Final = 0.05


def columns(letter: str) -> list[str]:
    """Return the columns of a table.

    >>> columns("w")
    ['w0', 'w1', 'w2', 'w3', 'w4']
    """
    return [f"{letter}{n}" for n in range(TABLES[letter])]


def layered(clauses: int) -> str:
    """Return a query with so many WITH clauses, `CLAUSES_MIN` of them at least.

    >>> [layered(many).count(" AS (SELECT ") for many in CLAUSES]
    [29, 60]
    """
    text = (resources.files("strandline.bench.served") / "layered.sql").read_text()
    begun, goes_on, joined, enriched, above, whole = map(Template, text.split("\n----\n"))
    lengths = dict(_CHAINS)
    for n in range(clauses - CLAUSES_MIN):
        lengths[list(lengths)[n % len(lengths)]] += 1
    last = {letter: f"{letter}t_{length - 1}" for letter, length in lengths.items()}
    wide = [f"{letter}{n}" for letter, start in _WIDE.items() for n in range(start, TABLES[letter])]
    named = []
    for letter in TABLES:
        own, table = columns(letter), f"{letter}t"
        named.append(begun.substitute(table=table, columns=", ".join(own), first=own[0]))
        for n in range(1, lengths[letter]):
            kept = {"kept": ", ".join(own[:-1]), "last": own[-1]}
            named.append(goes_on.substitute(kept, table=table, n=n, before=n - 1))
    carried = ", ".join(name for name in wide if name[0] in "cdw")
    orders = ", ".join(columns("o"))
    named.append(joined.substitute(last, orders=orders, carried=carried, wide=", ".join(wide)))
    narrow = ", ".join(wide[:-1])
    named += [enriched.substitute(narrow=narrow, n=n, before=n - 1) for n in range(1, lengths["f"])]
    named.append(above.substitute(last, f=f"f_{lengths['f'] - 1}"))
    return whole.substitute(clauses=",\n".join(named))


def measure_creating(session: SparkSession, place: Path, *, clauses: Sequence[int]) -> dict[str, Any]:
    """Return for each number of clauses how long plain Spark plans, CREATE takes, others wait, and ticks take.

    Each is created in environments of its own, which remember nothing of each other: first as the first of its kind in
    this JVM, then again when Spark's own code is warm, and at last while others ask and tick.
    """
    found = [{"clauses": many, **_measured(session, place / str(many), layered(many))} for many in clauses]
    return {"views": found, "load": round(os.getloadavg()[0], 1)}


def _measured(session: SparkSession, place: Path, query: str) -> dict[str, Any]:
    plain = session.newSession()
    for letter in TABLES:
        plain.createDataFrame([], _listed(letter)).createOrReplaceTempView(f"{letter}t")
    planned = [seconds(lambda: plain.sql(query)._jdf.queryExecution().executedPlan()) for _ in range(_PLANNED)]  # noqa: SLF001 - no public call plans and runs nothing
    with _environment(session, place / "first") as env:
        created = [_created(env, query)]
        ticked = [seconds(env.tick)]
        env.insert("ht", [dict.fromkeys(columns("h"), 1)])
        ticked.append(seconds(env.tick))
        recomputed, equal = not env.explain("v").incremental, env.verify("v").ok
    for n in range(_AGAIN):
        with _environment(session, place / f"again-{n}") as env:
            created.append(_created(env, query))
    with _environment(session, place / "beside") as env:
        quiet, asked, moved = _waits(env, query)
    first, warm = created[0], min(created[1:])
    return {
        "characters": len(query),
        "plain_first_s": round(planned[0], 2),
        "plain_s": round(min(planned), 2),
        "create_first_s": round(first, 2),
        "create_s": round(warm, 2),
        "first_ratio": round(first / planned[0], 1),
        "ratio": round(warm / min(planned), 1),
        "answer_quiet_max_s": round(max(quiet), 2),
        "answer_max_s": round(max(asked), 2),
        "tick_max_s": round(max(moved), 2),
        "first_tick_s": round(ticked[0], 2),
        "second_tick_s": round(ticked[1], 2),
        "recomputed": recomputed,
        "equal": equal,
    }


@contextmanager
def _environment(session: SparkSession, place: Path) -> Iterator[Environment]:
    """Yield an environment with the tables, of two equal rows each, and one that the view does not read."""
    with programs.open(f"file://{place}", spark=session) as env:
        for letter in TABLES:
            env.execute(f"CREATE TABLE {letter}t ({_listed(letter)})")
            env.insert(f"{letter}t", [dict.fromkeys(columns(letter), 1)] * 2)
        env.execute("CREATE TABLE other (id INT)")
        env.execute("INSERT INTO other VALUES (1)")
        env.tick()
        yield env


def _listed(letter: str) -> str:
    names = columns(letter)
    return ", ".join(f"{name} {'DOUBLE' if name == names[-1] else 'INT'}" for name in names)


def _created(env: Environment, query: str) -> float:
    return seconds(lambda: env.execute(f"CREATE MATERIALIZED VIEW v AS {query}"))


def _waits(env: Environment, query: str) -> tuple[list[float], list[float], list[float]]:
    """Return how long answers take before CREATE, and answers and ticks beside it."""
    asks, ticks = (lambda: env.answer("SELECT count(*) AS n FROM other")), env.tick
    with _timed(asks) as (quiet,):
        time.sleep(1)  # noqa: TID251 - the other thread asks meanwhile
    with _timed(asks, ticks) as (asked, ticked):
        _created(env, query)
    return quiet, asked, ticked


@contextmanager
def _timed(*calls: Callable[[], object]) -> Iterator[list[list[float]]]:
    """Make each call again and again meanwhile, and yield how long each took: one of each at least, in the end.

    None is begun once the context is left: the next tick is then the first of a view that was created meanwhile.
    """
    over, found = threading.Event(), [list[float]() for _ in calls]

    def again(call: Callable[[], object], took: list[float]) -> None:
        while not (over.is_set() and took):
            took.append(seconds(call))
            over.wait(_PAUSE_S)

    calling = [threading.Thread(target=again, args=each) for each in zip(calls, found, strict=True)]  # noqa: TID251 - other programs
    for each in calling:
        each.start()
    try:
        yield found
    finally:
        over.set()
        for each in calling:
            each.join()
