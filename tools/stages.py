"""Run the tests stage by stage, cheapest first, and account for every one of them.

A *stage* is a set of tests with pytest processes of its own, so that a Spark session, real servers or killed processes
never disturb anything else.  Two processes that compute run at a time, and one beside them of a stage that mostly
waits (`WAITING`).  The tests are dealt to them by the seconds that each file took when that was last recorded
(`sides.py`), and what takes longest begins first.  What a process prints is shown when it ends, unless there is only
one.

`stage_of` is a function of a test's path and markers: every test is in exactly one stage, by construction.  The runner
collects the tests first, so a test that is collected and then neither passed, failed nor was skipped makes the run
fail: nothing is lost silently, and every skip is printed with its name and reason.

Of tests with many cases that are much alike, and of those that take long, a share is drawn (`drawing.py`).

A test that its process dies of has failed, by its name; the others of the stage are run again.  How long a test may
take: `time_limits.py`.

pytest-xdist and pytest-timeout would be less to maintain.  What they cannot do, and this must:

- A worker of xdist lives as long as the run, and so do its session fixtures: each worker would hold a Spark
  application, a broker and a database to the end, and no process that a test leaves is ended before that.
- A worker takes the next test of any kind.  Nothing says that two may compute while a third one waits, nor that a test
  which kills processes begins in a process that no other test has used.
- xdist knows no seconds: with `loadgroup` the order is that of collection, and the longest group may come last.
- A test that is collected and not run, and a process that ends by itself with status 0, do not fail the run.
- pytest-timeout either raises once, where code under test may catch it, or ends the process with all of its tests; and
  it shows no stack of a task of the event loop.

Warning: this file is also a pytest plugin (``-p stages``); it must import nothing but pytest, `costs`,
`drawing` and the standard library.

    python tools/stages.py                    all stages but `long` (what `make test` runs)
    python tools/stages.py unit spark         these stages
    python tools/stages.py --figures damage   print only the reliability figures that the tests recorded
    python tools/stages.py --record           and write down what they took, by which the next run deals and draws

A test records a figure with ``record_property("FIGURE", "name value goal pass|miss|info")``.  A miss makes the run
fail; `info` is for a speed, which depends on what else the machine does: its reader judges it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final
from xml.etree import ElementTree as ET

import drawing
import pytest

import costs

ROOT: Final = Path(__file__).resolve().parent.parent

#: Every stage in running order, with what it holds.
STAGES: Final = {
    "check": "format, lint, types, layers, words, tidiness, the pages and the site that follow from the code",
    "unit": "unit tests, doctests, scripts, cases",
    "properties": "properties under Hypothesis",
    "simulation": "the whole system in one thread, faults from a seed",
    "planted": "planted bugs, which the simulation must catch",
    "spark": "tests on a Spark session",
    "views": "random views beside plain Spark",
    "servers": "tests against real servers",
    "kills": "real processes killed at random moments",
    "cluster": "a Spark cluster whose executors share nothing with the driver",
    "demo": "a slice of the main job",
    "damage": "corruption and fuzz",
    "long": "what takes too long for CI",
}
NOT_IN_CI: Final = frozenset({"long"})

#: The first marker that a test has decides; a test without any of them belongs where its path says.
STAGE_BY_MARKER: Final = {
    "slow": "long",
    "demo": "demo",
    "kill": "kills",
    "cluster": "cluster",
    "server": "servers",
    "views": "views",
    "spark": "spark",
    "fuzz": "damage",
    "property": "properties",
}
STAGE_BY_PATH: Final = {
    "tests/simulation/planted/": "planted",
    "tests/simulation/": "simulation",
    "tests/test_docs_options.py": "check",
    "tests/test_docs_reference.py": "check",
    "tests/test_docs_site.py": "check",
    "tests/test_layers.py": "check",
    "tests/test_named.py": "check",
    "tests/test_tidy.py": "check",
    "tests/test_words.py": "check",
}
CHECK_COMMANDS: Final = (
    ("ruff", "format", "--check", "."),
    ("ruff", "check", "--quiet", "--output-format=concise", "."),
    ("mypy",),
)

SHARE_S: Final = {"unit": 0.5, "spark": 0.5, "servers": 1.0, "kills": 15.0}
"""A test of these stages that takes longer runs in fewer runs (`one_in` in `drawing.py`): on average, so long of each.

The other stages hold laws and planted bugs, which every run tries, or what has no shorter form.
"""

COMPUTING: Final = 2
"""How many processes run at a time that need a processor each."""
WAITING: Final = frozenset({"servers", "kills", "cluster"})
"""Stages that mostly wait, for servers and the clock: one process of theirs runs beside the others."""
COST_S: Final = {
    "simulation": 10.0,
    "spark": 1.2,
    "views": 110.0,
    "servers": 3.0,
    "kills": 45.0,
    "cluster": 20.0,
    "demo": 45.0,
}
"""What a test of a stage is taken to cost whose file was never recorded; of another stage, `OTHER_COST_S`."""
OTHER_COST_S: Final = 0.2
PART_S: Final = 700.0
"""So much of a stage is a process of its own: long enough that it pays to start Spark, short enough to end together."""
DEALT_BY_TEST: Final = frozenset({"views"})
"""Stages of a few long tests in one file: these are dealt, in place of files."""

STAGE_MINUTES_MAX: Final = 75
"""After this a stage's processes are killed and it counts as failed; each test has its own limit (time_limits.py)."""
LONG_MINUTES_MAX: Final = 600
"""The same for a stage that CI does not run: a night."""

SLOWEST: Final = 5
"""How many tests of a stage are named with their seconds, and only those that took `SLOW_SECONDS`."""
SLOW_SECONDS: Final = 10.0
EXPENSIVE: Final = 40
"""How many tests are named with the figures."""

DEATHS_MAX: Final = 3
"""How often a stage is run again without the test that its process died of (or had to be killed for)."""

PYTEST_NO_TESTS: Final = 5
OUT_OF_TIME: Final = 124
"""The exit status of a command that was killed because it took too long."""


def stage_of(path: str, markers: Iterable[str]) -> str:
    """Return the one stage of a test in the file ``path`` (relative to the root, with ``/``) that has ``markers``.

    >>> stage_of("tests/persist/test_client.py", []), stage_of("tests/simulation/planted/test_rooms.py", ["x"])
    ('unit', 'planted')
    >>> stage_of("tests/engine/parts/test_merge.py", ["spark", "kill"])
    'kills'
    """
    held = frozenset(markers)
    for marker, stage in STAGE_BY_MARKER.items():
        if marker in held:
            return stage
    for start, stage in STAGE_BY_PATH.items():
        if path.startswith(start):
            return stage
    return "unit"


# --- the plugin, inside each pytest process ---------------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options by which the runner asks for its tests."""
    group = parser.getgroup("stages")
    group.addoption("--stage", help="run only the tests of this stage")
    group.addoption("--stage-draw", metavar="SEED", type=int, help="run the share of tests that this seed draws")
    group.addoption("--stage-census", metavar="FILE", help="write how many tests each file gives each stage")
    group.addoption("--stage-running", metavar="FILE", help="keep the name of the test that runs in this file")
    group.addoption("--stage-without", metavar="TEST", action="append", default=[], help="leave out this test")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the stage that was asked for; write the census if that was asked for."""
    seed = config.getoption("--stage-draw")
    alike = frozenset() if seed is None else left_out(items, seed)
    placed = [(item, (_path(item), "long" if item.nodeid in alike else stage_of_item(item))) for item in items]
    if census := config.getoption("--stage-census"):
        counts: dict[str, dict[str, int]] = {}
        for item, (path, stage) in placed:
            files, what = counts.setdefault(stage, {}), item.nodeid if stage in DEALT_BY_TEST else path
            files[what] = files.get(what, 0) + 1
        Path(census).write_text(json.dumps(counts))
    if wanted := config.getoption("--stage"):
        without = frozenset(config.getoption("--stage-without"))
        kept = [item for item, (_, stage) in placed if stage == wanted and item.nodeid not in without]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def left_out(items: Sequence[pytest.Item], seed: int) -> frozenset[str]:
    """Return the tests that ``seed`` does not draw."""
    others, known = [], costs.recorded().get(costs.TESTS, {})
    for item in items:
        seconds, share_s = known.get(reported_name(item.nodeid)), SHARE_S.get(stage_of_item(item))
        if seconds and share_s and not item.get_closest_marker("drawn"):
            others.append((item.nodeid, drawing.one_in(seconds, share_s)))
    return alike_left_out(items, seed) | drawing.put_off(others, seed)


def alike_left_out(items: Sequence[pytest.Item], seed: int) -> frozenset[str]:
    """Return the cases that ``seed`` does not draw of tests whose cases are much alike."""
    marked = ((item, item.get_closest_marker("drawn")) for item in items)
    return drawing.left_out(
        [(item.nodeid.split("[")[0], item.nodeid, mark.args[0]) for item, mark in marked if mark], seed
    )


def reported_name(nodeid: str) -> str:
    """Return the name by which a JUnit report has a test, and so what is recorded of it.

    >>> reported_name("tests/tools/test_stages.py::TestC::test_d[e/f::g]")
    'tests.tools.test_stages.TestC::test_d[e/f::g]'
    """
    address, bracket, case = nodeid.partition("[")
    path, *names = address.split("::")
    *classes, test = names or [""]
    return f"{'.'.join([path.removesuffix('.py').replace('/', '.'), *classes])}::{test}{bracket}{case}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Write down which test runs, so that the runner can name it if this process dies."""
    if running := item.config.getoption("--stage-running"):
        Path(running).write_text(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take back the name of the running test: none runs."""
    if running := session.config.getoption("--stage-running"):
        Path(running).unlink(missing_ok=True)


def stage_of_item(item: pytest.Item) -> str:
    """Return the one stage of a test that was collected."""
    return stage_of(_path(item), (marker.name for marker in item.iter_markers()))


def _path(item: pytest.Item) -> str:
    return item.path.relative_to(item.config.rootpath).as_posix()


# --- the runner -------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Tally:
    """What came of some tests: counts, what to say about skips, figures, and what each test, file and process took."""

    passed: int = 0
    failed: int = 0
    skips: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    processes: dict[str, float] = field(default_factory=dict)

    @property
    def counted(self) -> int:
        """How many tests are accounted for."""
        return self.passed + self.failed + len(self.skips)

    @property
    def missed(self) -> list[str]:
        """The figures that did not reach their goals."""
        return [figure for figure in self.figures if figure.endswith(" miss")]

    def add(self, other: Tally) -> None:
        """Count the tests of ``other`` too."""
        self.passed += other.passed
        self.failed += other.failed
        self.skips += other.skips
        self.figures += other.figures
        self.seconds |= other.seconds
        for file, seconds in other.costs.items():
            self.costs[file] = self.costs.get(file, 0.0) + seconds
        self.processes |= other.processes

    @property
    def slowest(self) -> list[tuple[str, float]]:
        """All tests, those that took longest first."""
        return sorted(self.seconds.items(), key=lambda named: -named[1])

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {len(self.skips)} skipped"


def run(command: list[str], *, out: int | IO[bytes] | None = None, minutes: int = STAGE_MINUTES_MAX) -> int:
    """Run ``command`` at the root without standard input; return its exit status, or `OUT_OF_TIME`.

    ``out``: where its output goes, as for `subprocess`.
    """
    environment = {**os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "tools"), os.environ.get("PYTHONPATH")]))
    # Tests start hundreds of processes.  Each would compile all that it imports, which takes as long as the rest of it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=None if out is None else subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(timeout=minutes * 60)
        except subprocess.TimeoutExpired:
            print(f"stages: stopped after {minutes} minutes: {' '.join(command)}", flush=True)
            return OUT_OF_TIME
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the session that ``process`` led: no test may leave a process running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def call_pytest(*arguments: str) -> list[str]:
    """Return the command that runs pytest with this file as a plugin."""
    return [sys.executable, "-m", "pytest", "-p", "stages", "-q", "--no-header", *arguments]


def take_census(directory: Path, draw: int) -> tuple[dict[str, dict[str, int]], bool]:
    """Collect all tests once: stage → file (or test) → number of tests, and whether every file could be collected."""
    found = directory / "census.json"
    collect = ("--collect-only", "-qq", "-p", "no:randomly")
    status = run(call_pytest(*collect, f"--stage-census={found}", f"--stage-draw={draw}"), out=subprocess.DEVNULL)
    complete = status in {0, PYTEST_NO_TESTS}
    if not complete:
        run(call_pytest(*collect, "--stage=none of them"))  # once more, aloud: only the errors are left to print
    counts: dict[str, dict[str, int]] = json.loads(found.read_text()) if found.exists() else {}
    return counts, complete


def read_report(report: Path, *, by_test: bool = False) -> Tally:
    """Read a JUnit report: one test case each, the skips with their reasons, the figures that tests recorded.

    ``by_test``: what was dealt, and so has a cost, is not a file but a test.
    """
    tally = Tally()
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        tally.seconds[name] = float(case.get("time") or 0)
        dealt = f"{_dealt(case)}::{case.get('name')}" if by_test else _dealt(case)
        tally.costs[dealt] = tally.costs.get(dealt, 0.0) + tally.seconds[name]
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed += 1
        elif skip is not None:
            tally.skips.append(f"{name}: {skip.get('message') or skip.get('type')}")
        else:
            tally.passed += 1
        for each in case.iter("property"):
            if each.get("name") == "FIGURE":
                tally.figures.append(f"FIGURE {each.get('value')}")
    return tally


def _dealt(case: ET.Element) -> str:
    """Return the file of a test case that was dealt: a contract's tests are dealt with the file of their class."""
    names = str(case.get("classname")).split(".")
    while names and names[-1][:1].isupper():
        names.pop()
    return f"{'/'.join(names)}.py" if names[:1] == ["tests"] else str(case.get("file"))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a stage: the tests of some of its files, for one process, which should take so many ``seconds``.

    ``files``: how many tests each has.  ``directory`` is for its reports.
    """

    stage: str
    number: int
    of: int
    files: dict[str, int]
    seconds: float
    directory: Path

    def __str__(self) -> str:
        return self.stage if self.of == 1 else f"{self.stage} {self.number}/{self.of}"


def parts_of(stage: str, files: Mapping[str, int], recorded: Mapping[str, float], directory: Path) -> list[Part]:
    """Return the parts of a stage; one without tests has one, as it may have commands."""
    known = {file: recorded.get(file, COST_S.get(stage, OTHER_COST_S) * tests) for file, tests in files.items()}
    own = costs.shares(known, 1 + int(sum(known.values()) / PART_S)) or [{}]
    return [
        Part(stage, n, len(own), {file: files[file] for file in share}, sum(share.values()), directory / f"{stage}-{n}")
        for n, share in enumerate(own, 1)
    ]


class Queue:
    """The parts that have not begun: what checks comes first, then what takes longest."""

    def __init__(self, parts: Iterable[Part]) -> None:
        ordered = sorted(parts, key=lambda part: (part.stage != "check", -part.seconds))
        self._computing = deque(part for part in ordered if part.stage not in WAITING)
        self._waiting = deque(part for part in ordered if part.stage in WAITING)

    def take(self, *, waiting: bool) -> Part | None:
        """Return the next part for a runner of those that wait, or of those that compute, which helps in the end."""
        try:
            return (self._waiting if waiting or not self._computing else self._computing).popleft()
        except IndexError:
            return None


def run_stages(counts: dict[str, dict[str, int]], directory: Path, draw: int, *, quiet: bool) -> dict[str, Tally]:
    """Run stages, by their tests in each file; say of each, when its last part has ended, what came of it."""
    known = costs.recorded()
    parts = [
        part for stage, files in counts.items() for part in parts_of(stage, files, known.get(stage, {}), directory)
    ]
    tallies, minutes = {stage: Tally() for stage in counts}, dict.fromkeys(counts, 0.0)
    left = {part.stage: part.of for part in parts}
    printing = threading.Lock()

    def run_part(part: Part) -> None:
        begun = time.monotonic()
        if not quiet:
            print(f"=== {part}: {STAGES[part.stage]}", flush=True)
        part.directory.mkdir()
        with (part.directory / "output").open("wb+") as output:
            out = subprocess.DEVNULL if quiet else output if len(parts) > 1 else None
            found = run_commands(out) if part.stage == "check" else Tally()
            found.add(run_share(part, draw, out))
            output.seek(0)
            printed = output.read()
        with printing:
            sys.stdout.flush()
            sys.stdout.buffer.write(printed)
            sys.stdout.buffer.flush()
            found.processes[str(part)] = time.monotonic() - begun
            tallies[part.stage].add(found)
            minutes[part.stage] += found.processes[str(part)] / 60
            left[part.stage] -= 1
            if not left[part.stage] and not quiet:
                say(part.stage, tallies[part.stage], minutes[part.stage])

    queue = Queue(parts)

    def run_parts(waiting: bool) -> None:
        while part := queue.take(waiting=waiting):
            run_part(part)

    with ThreadPoolExecutor(COMPUTING + 1) as runners:
        list(runners.map(run_parts, [False] * COMPUTING + [True]))
    return tallies


def say(stage: str, tally: Tally, minutes: float) -> None:
    """Print what came of a stage; ``minutes``: of all of its processes."""
    print(f"--- {stage}: {tally if tally.counted else '0 tests'} in {minutes:.1f} min", flush=True)
    for skip in tally.skips:
        print(f"    skipped {skip}", flush=True)
    for name, seconds in tally.slowest[:SLOWEST]:
        if seconds >= SLOW_SECONDS:
            print(f"    {seconds:.0f} s: {name}", flush=True)


def run_share(part: Part, draw: int, out: int | IO[bytes] | None) -> Tally:
    """Run the tests of a part in one pytest process, whose output goes to ``out``."""
    stage, files, directory = part.stage, part.files, part.directory
    if not files:
        return Tally()
    report, running = directory / f"{stage}.xml", directory / f"{stage}.running"
    died: list[str] = []
    while True:
        left_out = [f"--stage-without={test}" for test in died]
        # Tests that are dealt one by one were drawn when they were counted; of some of them another share is drawn.
        drawn = [] if stage in DEALT_BY_TEST else [f"--stage-draw={draw}"]
        asked = (f"--stage={stage}", *drawn, f"--junitxml={report}", f"--stage-running={running}")
        command = call_pytest(*asked, *left_out, *sorted(files))
        status = run(command, out=out, minutes=LONG_MINUTES_MAX if stage in NOT_IN_CI else STAGE_MINUTES_MAX)
        if not running.exists():
            break
        died.append(running.read_text())
        running.unlink()
        again = status != OUT_OF_TIME and len(died) <= DEATHS_MAX
        print(
            f"stages: FAILED {died[-1]}: its process died{'; the other tests run again' if again else ''}", flush=True
        )
        if not again:
            break
    tally = read_report(report, by_test=stage in DEALT_BY_TEST) if report.exists() else Tally()
    tally.failed += len(died)
    lost = sum(files.values()) - tally.counted
    if lost > 0:
        print(f"stages: {lost} tests of stage {stage} were collected and not run", flush=True)
        tally.failed += lost
    if status != 0 and not tally.failed:
        print(f"stages: pytest ended with status {status} in stage {stage}", flush=True)
        tally.failed += 1
    return tally


def run_commands(out: int | IO[bytes] | None) -> Tally:
    """Run format, lint and types; each counts as one test."""
    tally = Tally()
    for command in CHECK_COMMANDS:
        if run([sys.executable, "-m", *command], out=out) == 0:
            tally.passed += 1
        else:
            print(f"stages: failed: {' '.join(command)}", flush=True)
            tally.failed += 1
    return tally


def main(arguments: list[str]) -> int:
    """Run the stages that ``arguments`` name (all but `long`, if none); return the exit status."""
    parser = argparse.ArgumentParser(prog="tools/stages.py", description="Run the tests stage by stage.")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=" ".join(STAGES))
    parser.add_argument("--figures", action="store_true", help="print only the figures, and what was most expensive")
    parser.add_argument(
        "--record", action="store_true", help="write down what files and tests took (tools/seconds.json)"
    )
    parser.add_argument(
        "--draw", type=int, metavar="SEED", help="run the cases that this seed draws, as a run printed it"
    )
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.stages) - set(STAGES)):
        parser.error(f"there is no stage {unknown[0]!r}; there are: {' '.join(STAGES)}")
    wanted = [stage for stage in STAGES if (stage in options.stages if options.stages else stage not in NOT_IN_CI)]

    draw = secrets.randbelow(1_000_000) if options.draw is None else options.draw
    if not options.figures:
        print(f"draw {draw}: --draw={draw} runs the same cases of tests of which a share is drawn", flush=True)

    begun = time.monotonic()
    total = Tally()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        counts, complete = take_census(directory, draw)
        if not complete:
            print("stages: some tests cannot be collected (see above); the others run all the same", flush=True)
            total.failed += 1
        tallies = run_stages({stage: counts.get(stage, {}) for stage in wanted}, directory, draw, quiet=options.figures)
    for tally in tallies.values():
        total.add(tally)
    costs.remember(total.seconds, total.processes)
    if options.record:
        costs.record({stage: tally.costs for stage, tally in tallies.items()}, total.seconds)
    print(*total.figures, sep="\n", end="\n" if total.figures else "")
    if options.figures:
        print(*costs.most_expensive(EXPENSIVE), sep="\n")
    else:
        print(f"\ntotal: {(time.monotonic() - begun) / 60:.1f} min", flush=True)
    print(total, flush=True)
    for figure in total.missed:
        print(f"stages: missed its goal: {figure}", flush=True)
    return 1 if total.failed or total.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
