"""Plant random mistakes in the core rooms, one at a time, and list those that no test of the room notices.

    make mutants N=50 ROOM=persist SEED=7    50 mistakes in one room, drawn by a seed
    python tools/mutants.py --n 400          over all rooms; the seed is printed
    … --no-spark                             no tests that need Spark
    … --histories                            survivors meet simulated histories too: a minute or more for each
    … --anew                                 record again which tests run which code

A mistake (`mutations.py`) is planted in a copy of the project; the checkout is never changed.  Its tests are those that
run the block that it stands in (`reach.py`), the nearest and fastest first, up to the first that fails, in bounded
processor time; then those on Spark; then those against real servers, which each mistake that comes so far starts anew
(what only servers reach is unreached where they are not installed).  Two workers (`mutant_worker.py`) do this at a
time.  Whatever is left has survived.  Survivors are printed with their difference; ``--out`` has all verdicts as JSON.

Recorded are also the tests that one run of `make test` leaves out as they take long, up to `RECORDED_S`.

Not counted: what compiles to the same code, and what `REVIEWED` calls equivalent, with a reason: no input, fault or
schedule shows a difference (other speed is none).  The other survivors that were read stand there as well, as missed.

Why not mutmut or cosmic-ray: mutmut 3 mutates functions only, so it leaves out the defaults of dataclasses; it chooses
tests by function, and a mutant that needs Spark would start a JVM of its own.  cosmic-ray knows no tests: it runs one
command for every mutant, so a mutant of persist would cost the whole suite.  Neither draws a sample by a seed over
rooms, and neither bounds the time of a mutant by the tests that run its block.  Choosing, bounding and sharing a JVM
are the larger part of these files.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

import mutations
import reach
import stages
from mutant_copy import Copy, share

EXAMPLES: Final = "tests/test_doctests.py"
"""The examples in docstrings are tests of every room."""
_VIEWS: Final = ("tests/compute", "tests/testing/lists", "tests/controller")
_SPARK: Final = ("tests/engine", *_VIEWS)
_READERS: Final = ("tests/sources", "tests/engine/messages", "tests/instance", "tests/controller/defining")
ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "persist": ("tests/persist", "tests/scripts", "tests/store"),
    "compute": _VIEWS,
    **dict.fromkeys(("engine/arrangements", "engine/prepared", "engine/frames", "engine/sql"), _SPARK),
    **dict.fromkeys([f"sources/{each}.py" for each in ("ingest", "reclock", "remap", "steps")], _READERS),
    "sources/envelopes.py": _READERS,
    **dict.fromkeys([f"sources/readers/{each}" for each in ("kafka", "postgres", "delta", "iceberg")], _READERS),
    "materialize": ("tests/materialize", "tests/instance"),
    "instance": ("tests/instance", "tests/controller", "tests/client"),
    "controller": ("tests/controller", "tests/client", "tests/cli", "tests/console"),
}
"""A room (a path below the package) → where the tests stand that ought to notice a mistake in it."""
_PERSIST: Final = ("tests/simulation/test_persist.py", "tests/simulation/test_streams.py")
_WHOLE: Final = ("tests/simulation/test_whole.py",)
_BOUND: Final = ("tests/simulation/test_small.py", *_WHOLE)
HISTORIES: Final = {
    "persist": _PERSIST,
    **dict.fromkeys([f"sources/{each}.py" for each in ("ingest", "reclock", "remap", "steps")], _BOUND),
    **dict.fromkeys(("compute", "materialize", "instance", "controller"), _WHOLE),
}
"""Which simulated histories a mistake can meet last.  Their processes are their own, so no blocks are recorded."""
STAGES: Final = ("unit", "properties", "damage", "servers")

NEAR_S: Final = 4.0
NEAR_FILES: Final = 6
"""What is run of a mistake's tests before all others: most are noticed at once, and each file costs its imports."""
SECONDS_MAX: Final = 40.0
"""How many seconds of tests a mistake gets without Spark, with it and with servers, by what they took when recorded."""
HISTORIES_S: Final = 150.0
RECORDING_S: Final = 600.0
"""The processor time that recording a few files may take."""
FILES_A_TASK: Final = 12
WORKERS: Final = 2
KEPT: Final = stages.ROOT / "build" / "mutants"
REVIEWED: Final = stages.ROOT / "tests" / "mutants" / "reviewed.toml"

Outcome = Literal["caught", "survived", "unreached", "equivalent"]
_writing: Final = threading.Lock()
"""Held by the thread that adds to what is known or printed."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake in a file, and the lines that it changes."""

    path: str
    room: str
    mutation: mutations.Mutation
    was: str
    now: str

    @property
    def difference(self) -> str:
        """The mistake as a reader sees it."""
        lines = [f"- {line}" for line in self.was.splitlines()] + [f"+ {line}" for line in self.now.splitlines()]
        return "\n".join([f"{self.path}:{self.mutation.line} ({self.mutation.kind})", *lines])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a mutant: the test that noticed it, or the tests that did not."""

    mutant: Mutant
    outcome: Outcome
    by: str
    tests: tuple[str, ...]
    seconds: float


def drawn(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants from some rooms: as many as asked for that are compiled into other code."""
    package = stages.ROOT / "src" / "strandline"
    places = [(room, file) for room in rooms for file in _modules(package / room)]
    sources = {file: file.read_text() for _, file in places}
    every = [(room, file, mutation) for room, file in places for mutation in mutations.mutations(sources[file])]
    random.Random(seed).shuffle(every)
    found: list[Mutant] = []
    for room, file, mutation in every:
        if len(found) == count:
            break
        if not mutations.changes_nothing(sources[file], mutation):
            was, now = changed(sources[file].splitlines(), mutation.planted(sources[file]).splitlines())
            found.append(Mutant(file.relative_to(stages.ROOT).as_posix(), room, mutation, was, now))
    return found


def _modules(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def meeting(mutant: Mutant, known: reach.Reach) -> list[str]:
    """Return the tests that may notice a mutant, the likeliest first.

    The statements of a module itself (tables, limits) are met by what runs a module that imports it; so is a module of
    which no test runs anything, as it is a program of its own.
    """
    block, under = mutant.mutation.block, (*ROOMS[mutant.room], EXAMPLES)
    found = known.running(mutant.path, block, under)
    if block is None or not known.running(mutant.path, None, under):
        found += [test for path in importing(mutant.path) for test in known.running(path, None, under)]
    return list(dict.fromkeys(found))


def importing(path: str) -> list[str]:
    """Return the modules that import a module, or from it."""
    name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
    package, _, own = name.rpartition(".")
    return [
        file.relative_to(stages.ROOT).as_posix()
        for file in _modules(stages.ROOT / "src" / "strandline")
        if any(each in (text := file.read_text()) for each in (f"from {name} import", f"from {package} import"))
        and any(
            isinstance(node, ast.ImportFrom)
            and (node.module == name or (node.module == package and own in {each.name for each in node.names}))
            for node in ast.walk(ast.parse(text))
        )
    ]


def changed(before: list[str], after: list[str]) -> tuple[str, str]:
    r"""Return the lines that differ, on both sides.

    >>> changed(["a", "b", "c"], ["a", "x", "y", "c"])
    ('b', 'x\ny')
    """
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    left = shorter - start
    end = next((at for at in range(left) if before[-1 - at] != after[-1 - at]), left)
    return "\n".join(before[start : len(before) - end]), "\n".join(after[start : len(after) - end])


def reviewed() -> dict[tuple[str, str, str], str]:
    """Return what was read before: file, lines, lines with the mistake → equivalent or missed."""
    if not REVIEWED.exists():
        return {}
    entries = tomllib.loads(REVIEWED.read_text())["mutant"]
    return {(each["file"], each["was"].strip(), each["now"].strip()): each["verdict"] for each in entries}


def record(known: reach.Reach, under: tuple[str, ...], of: tuple[str, ...], copies: list[Copy]) -> None:
    """Run the test files that are new or changed on marked code, and keep what each of their tests runs."""
    tests = sorted(path.relative_to(stages.ROOT).as_posix() for path in (stages.ROOT / "tests").rglob("test_*.py"))
    missing = known.missing(stages.ROOT, [path for path in tests if path.startswith(under)])
    if not missing:
        return
    known.forget(missing)
    print(f"mutants: recording which code the tests of {len(missing)} files run", flush=True)
    package = stages.ROOT / "src" / "strandline"
    modules = sorted({file for room in ROOMS for file in _modules(package / room)})
    texts = {file.relative_to(stages.ROOT).as_posix(): file.read_text() for file in modules}
    for copy in copies:
        copy.write(f"src/{reach.MARKS}.py", reach.MARKS_SOURCE)
        for path, text in texts.items():
            copy.write(path, reach.marked(text, path))

    def one(copy: Copy, files: list[str]) -> None:
        copy.run(files, of=of, seconds=RECORDING_S, spark="spark" in of, record=True)
        if copy.answer is None:
            print(f"mutants: {' '.join(files)}: nothing recorded\n{copy.output[-2000:]}", flush=True)
            return
        with _writing:
            known.tests |= reach.read(json.loads(copy.answer))
            known.files |= {path: reach.digest(stages.ROOT / path) for path in files}
            known.save(KEPT / "reach.json")

    share(copies, one, [missing[at : at + FILES_A_TASK] for at in range(0, len(missing), FILES_A_TASK)])
    for copy in copies:
        for path, text in texts.items():
            copy.write(path, text)


def judge(copy: Copy, mutant: Mutant, known: reach.Reach, *, spark: bool, histories: bool) -> Verdict:
    """Run the tests of a mutant, the likeliest first, until one notices it."""
    begun = time.monotonic()
    tests = [test for test in meeting(mutant, known) if spark or not known.tests[test].spark]
    on_servers = within([test for test in tests if known.tests[test].server], known)
    apart = [test for test in tests if not known.tests[test].server]
    on_spark = within([test for test in apart if known.tests[test].spark], known)
    near, later = split([test for test in apart if not known.tests[test].spark], known)
    simulated = HISTORIES.get(mutant.room, ()) if histories else ()
    source = (stages.ROOT / mutant.path).read_text()
    copy.write(mutant.path, mutant.mutation.planted(source))
    ran: list[str] = []
    by: str | None = None
    try:
        for chosen in (near, later, on_spark, on_servers):
            if chosen and not by:
                files, seconds = dict.fromkeys(map(reach.file_of, chosen)), sum(known.tests[t].seconds for t in chosen)
                on_jvm = any(known.tests[test].spark for test in chosen)
                by = _noticed(copy, copy.run(files, chosen, seconds=seconds, spark=on_jvm))
                ran += chosen
        if simulated and not by:
            by = _noticed(copy, copy.run(simulated, of=["simulation"], seconds=HISTORIES_S))
            ran += simulated
    finally:
        copy.write(mutant.path, source)
    outcome: Outcome = "caught" if by else "survived" if ran else "unreached"
    return Verdict(mutant, outcome, by or "", tuple(ran), round(time.monotonic() - begun, 1))


def _noticed(copy: Copy, status: int | None) -> str | None:
    """Return what noticed the mistake in a run: a test, or the limit."""
    if status == 0:
        return None
    return (
        json.loads(copy.answer) if copy.answer else None
    ) or f"pytest: {'out of time' if status is None else status}"


def split(tests: list[str], known: reach.Reach) -> tuple[list[str], list[str]]:
    """Return the tests of the first round and those of the second."""
    near: list[str] = []
    files: set[str] = set()
    seconds = 0.0
    for test in tests:
        file, own = reach.file_of(test), known.tests[test].seconds
        if seconds + own <= NEAR_S and (file in files or len(files) < NEAR_FILES):
            near.append(test)
            files.add(file)
            seconds += own
    first = frozenset(near)
    return near, within([test for test in tests if test not in first], known)


def within(tests: list[str], known: reach.Reach) -> list[str]:
    """Return as many tests as fit into `SECONDS_MAX`, the first whatever it takes."""
    found: list[str] = []
    seconds = 0.0
    for test in tests:
        if not found or seconds + known.tests[test].seconds <= SECONDS_MAX:
            found.append(test)
            seconds += known.tests[test].seconds
    return found


def main(arguments: list[str]) -> int:
    """Draw, plant, run, and report; the status is 0 whatever survives."""
    parser = argparse.ArgumentParser(prog="tools/mutants.py", description="Plant mistakes and list those not noticed.")
    parser.add_argument("--n", type=int, default=50, help="how many mistakes")
    parser.add_argument("--room", action="append", choices=list(ROOMS), help="where (default: in all)")
    parser.add_argument("--seed", type=int, help="draws the mistakes (default: a new one)")
    parser.add_argument("--no-spark", action="store_true", help="run no test that needs Spark")
    parser.add_argument("--histories", action="store_true", help="let survivors meet simulated histories")
    parser.add_argument("--anew", action="store_true", help="record again which tests run which code")
    parser.add_argument("--out", type=Path, default=KEPT / "mutants.json", help="where to write the verdicts")
    options = parser.parse_args(arguments)
    rooms = options.room or list(ROOMS)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    KEPT.mkdir(parents=True, exist_ok=True)
    known = reach.Reach() if options.anew else reach.load(KEPT / "reach.json")
    mutants, before = drawn(rooms, options.n, seed), reviewed()
    verdicts: list[Verdict] = []

    def one(copy: Copy, mutant: Mutant) -> None:
        if before.get((mutant.path, mutant.was.strip(), mutant.now.strip())) == "equivalent":
            verdict = Verdict(mutant, "equivalent", "", (), 0.0)
        else:
            verdict = judge(copy, mutant, known, spark=not options.no_spark, histories=options.histories)
        with _writing:
            verdicts.append(verdict)
            say(verdict, len(verdicts), len(mutants))
            options.out.write_text(
                json.dumps({"seed": seed, "verdicts": [asdict(each) for each in verdicts]}, indent=1)
            )

    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        copies = [Copy(Path(name) / str(number)) for number in range(WORKERS)]
        of = STAGES + (() if options.no_spark else ("spark",))
        record(known, (EXAMPLES, *sorted({path for room in rooms for path in ROOMS[room]})), of, copies)
        share(copies, one, mutants)
        for copy in copies:
            copy.end()
    report(verdicts, seed)
    return 0


def say(verdict: Verdict, number: int, of: int) -> None:
    """Print what came of one mutant."""
    what = f"{verdict.outcome} {verdict.by}".strip()
    place = f"{verdict.mutant.path}:{verdict.mutant.mutation.line}"
    print(f"[{number}/{of}] {place} {verdict.mutant.mutation.kind}: {what} ({verdict.seconds} s)", flush=True)


def report(verdicts: list[Verdict], seed: int) -> None:
    """Print the survivors with their differences, and the share that was caught."""
    for verdict in sorted(verdicts, key=lambda each: (each.mutant.path, each.mutant.mutation.line)):
        if verdict.outcome in {"survived", "unreached"}:
            print(f"\n{verdict.outcome}, {len(verdict.tests)} tests: {verdict.mutant.difference}")
    counts = Counter(verdict.outcome for verdict in verdicts)
    real = len(verdicts) - counts["equivalent"]
    caught = f", {100 * counts['caught'] / real:.0f} % caught" if real else ""
    print(f"\nseed {seed}: {dict(sorted(counts.items()))}{caught}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
