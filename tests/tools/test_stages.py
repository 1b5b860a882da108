"""The stage runner: each test in one stage, none lost, every skip said aloud."""

from __future__ import annotations

import doctest
import importlib.util
import itertools
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import drawing
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def stages() -> ModuleType:
    """The runner, loaded from its file: it is a program, not a part of the package."""
    if "stages" in sys.modules:  # as a plugin of the very run that tests it
        return sys.modules["stages"]
    spec = importlib.util.spec_from_file_location("stages", ROOT / "tools" / "stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stages"] = module
    spec.loader.exec_module(module)
    return module


def test_every_test_has_exactly_one_stage(stages: ModuleType) -> None:
    """A test without a stage would never run; one with two would run twice and count twice."""
    markers = tuple(stages.STAGE_BY_MARKER)
    held = [subset for size in range(len(markers) + 1) for subset in itertools.combinations(markers, size)]
    paths = [*stages.STAGE_BY_PATH, "tests/persist/test_machine.py", "tests/test_new.py"]
    reached = set()
    for path, subset in itertools.product(paths, held):
        answers = {stages.stage_of(path, order) for order in itertools.permutations(subset[:3])}
        assert len(answers) == 1, f"{path} with {subset} is in {answers}"
        reached |= answers
    assert reached == set(stages.STAGES), "every stage can be reached, and no other"


def test_the_markers_of_the_project_are_those_of_the_stages(stages: ModuleType) -> None:
    """A marker that the stages do not know would put a test that needs a server among the unit tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    names = {each.partition(":")[0].partition("(")[0] for each in settings["markers"]}
    assert names == {*stages.STAGE_BY_MARKER, "drawn", "hasty"}


def test_every_case_of_a_drawn_test_runs_sooner_or_later_and_one_of_each_test_always() -> None:
    """Damage: a test of which a share is drawn never runs, or a case of it never does."""
    cases = [
        (test, f"{test}[{n}]", 3) for test, count in (("a", 10), ("b", 3), ("c", 2), ("d", 1)) for n in range(count)
    ]
    names = {name for _, name, _ in cases}
    drawn = [names - drawing.left_out(cases, seed) for seed in range(50)]
    assert set().union(*drawn) == names
    for each in drawn:
        counts = Counter(name[0] for name in each)
        assert counts["a"] in {3, 4}, each
        assert (counts["b"], counts["c"], counts["d"]) == (1, 1, 1), each


def test_a_test_that_takes_long_runs_in_one_run_of_so_many() -> None:
    """Damage: a test that costs much never runs, or all of them run at once."""
    names = {f"test_{n}" for n in range(20)}
    ran = [names - drawing.put_off([(name, 4) for name in names], seed) for seed in range(100)]
    assert set().union(*ran) == names
    assert 3 < sum(map(len, ran)) / len(ran) < 7


def test_what_a_test_took_when_it_was_recorded_decides_how_often_it_runs(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Damage: a test is looked up by another name than it was recorded by, and the run grows with each long test."""
    this = stages.reported_name(request.node.nodeid)
    share_s = stages.SHARE_S[stages.stage_of_item(request.node)]
    for times, expected in {1: 400, 4: 100, 100: 400 / drawing.SELDOM}.items():
        monkeypatch.setattr(stages.costs, "recorded", lambda took=times * share_s: {"tests": {this: took}})
        ran = sum(not stages.left_out([request.node], seed) for seed in range(400))
        assert 0.7 * expected <= ran <= 1.3 * expected
    assert this == f"tests.tools.test_stages::{request.node.name}"


def test_a_report_counts_every_test_and_gives_the_reason_of_each_skip(stages: ModuleType, tmp_path: Path) -> None:
    """A skip without its reason hides a test that has not run for months."""
    report = tmp_path / "report.xml"
    report.write_text("""<testsuites><testsuite>
        <testcase classname="a" file="tests/a.py" time="1.5" name="passes"><properties>
            <property name="FIGURE" value="S1 7 5 pass"/>
            <property name="FIGURE" value="S2 7 &gt;=9 miss"/>
            <property name="FIGURE" value="rate 7 &gt;=9 info"/></properties></testcase>
        <testcase classname="a" file="tests/a.py" time="1.5" name="fails"><failure message="no"/></testcase>
        <testcase classname="a" file="tests/a.py" time="1.5" name="breaks"><error message="no"/></testcase>
        <testcase classname="a" file="tests/a.py" time="1.5" name="waits">
            <skipped type="pytest.skip" message="no PostgreSQL here"/></testcase>
        <testcase classname="tests.b.TestB" file="src/contract.py" time="2" name="inherited"/>
        </testsuite></testsuites>""")
    tally = stages.read_report(report)
    assert str(tally) == "2 passed, 2 failed, 1 skipped"
    assert tally.skips == ["a::waits: no PostgreSQL here"]
    assert tally.figures == ["FIGURE S1 7 5 pass", "FIGURE S2 7 >=9 miss", "FIGURE rate 7 >=9 info"]
    assert tally.costs == {"tests/a.py": 6.0, "tests/b.py": 2.0}, "a contract's tests are dealt with their class"
    assert stages.read_report(report, by_test=True).costs.keys() > {"tests/a.py::passes", "tests/a.py::fails"}
    assert tally.missed == ["FIGURE S2 7 >=9 miss"], "a speed is shown: it fails no run"


DIES = "def test_a(): pass\ndef test_b():\n    import os\n    os._exit(0)"
HANGS = """
import itertools
def test_a(): pass
@pytest.mark.time_limit(0.5, grace_s=0.5)
def test_b(): sum(itertools.repeat(0))
"""


@pytest.mark.parametrize(
    ("body", "passed", "failed", "died"),
    [
        ("def test_a(): pass\ndef test_b(): pass", 2, 0, []),
        ("def test_a(): pass\ndef test_b(): assert False", 1, 1, []),
        (DIES, 1, 1, ["test_b"]),
        (HANGS, 1, 1, ["test_b"]),
        ("import os\ndef test_a(): os._exit(0)\ndef test_b(): os._exit(1)", 0, 2, ["test_a", "test_b"]),
    ],
    ids=["all pass", "one fails", "the process dies and says it is well", "one cannot be interrupted", "both die"],
)
def test_no_collected_test_is_lost(
    stages: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd,
    body: str,
    passed: int,
    failed: int,
    died: list[str],
) -> None:
    """A process that dies in the middle must not look like one that had less to do, nor cost the others their run."""
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tools\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("time_limits",)\n')
    (tmp_path / "test_it.py").write_text(f"import pytest\n{body}\n")
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    tally = stages.run_stages({"unit": {"test_it.py": 2}}, tmp_path, 1, quiet=True)["unit"]
    assert (tally.passed, tally.failed) == (passed, failed)
    told = capfd.readouterr().out
    assert [name for name in ("test_a", "test_b") if f"FAILED test_it.py::{name}: its process died" in told] == died


def test_a_stage_that_dies_of_one_test_after_the_other_is_given_up(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """A machine that kills every process must not make the stage run for ever, nor let a test look as if it passed."""
    count = stages.DEATHS_MAX + 4
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        f"import os, pytest\n@pytest.mark.parametrize('n', range({count}))\ndef test_a(n): os._exit(1)\n"
    )
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    tally = stages.run_stages({"unit": {"test_it.py": count}}, tmp_path, 1, quiet=True)["unit"]
    assert (tally.passed, tally.failed) == (0, count)
    assert capfd.readouterr().out.count("its process died") == stages.DEATHS_MAX + 1


def test_the_tests_of_a_stage_that_has_several_processes_run_once_each(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests that several processes run, or none, must not look like a stage that was run."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, count in (("a", 3), ("b", 2), ("c", 2)):
        (tmp_path / f"test_{name}.py").write_text(
            f"import pathlib, pytest\n@pytest.mark.parametrize('n', range({count}))\n"
            f"def test_it(n): (pathlib.Path(__file__).parent / f'ran-{name}-{{n}}').open('x')\n"
        )
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    tally = stages.run_stages({"unit": {"test_a.py": 3, "test_b.py": 2, "test_c.py": 2}}, tmp_path, 1, quiet=True)[
        "unit"
    ]
    assert (tally.passed, tally.failed) == (7, 0)
    assert len(list(tmp_path.glob("ran-*"))) == 7


@pytest.mark.parametrize("stage", ["views", "spark"])
def test_what_is_drawn_is_what_runs_however_it_is_dealt(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Damage: a process that gets some of the drawn cases draws again, and the run fails for want of some."""
    markers = "\n".join(f"  {name}" for name in (*stages.STAGE_BY_MARKER, "drawn"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}\n")
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.{stage}\n@pytest.mark.drawn(3)\n@pytest.mark.parametrize('n', range(12))\n"
        "def test_a(n): pass\n"
    )
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    counts, _ = stages.take_census(tmp_path, 5)
    assert [sum(counts[each].values()) for each in (stage, "long")] == [4, 8]
    tally = stages.run_stages({stage: counts[stage]}, tmp_path, 5, quiet=True)[stage]
    assert (tally.passed, tally.failed) == (4, 0)


def test_what_takes_longest_begins_first_and_what_waits_stands_in_no_ones_way(stages: ModuleType, tmp_path) -> None:
    """Else the run ends with one process at work and the others idle; or all wait for servers, and none computes."""
    seconds = {"check": 1, "spark": stages.PART_S * 1.5, "unit": 7, "servers": 900, "kills": 5}
    parts = [
        part
        for stage, cost in seconds.items()
        for part in stages.parts_of(stage, {f"{stage}/a.py": 1, f"{stage}/b.py": 1}, {f"{stage}/a.py": cost}, tmp_path)
    ]
    queue = stages.Queue(parts)
    waiting = [str(queue.take(waiting=True)) for _ in range(2)]
    assert waiting == ["servers 1/2", "kills"], "their own runner takes them, longest first"
    computing = [str(queue.take(waiting=False)) for _ in range(5)]
    assert computing[:3] == ["check", "spark 1/2", "unit"]
    assert sorted(computing[3:]) == ["servers 2/2", "spark 2/2"], (
        "who computes helps in the end; each part is taken once"
    )
    assert queue.take(waiting=True) is queue.take(waiting=False) is None


def test_what_a_run_took_is_what_the_next_one_deals_by(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else tests are dealt by seconds of long ago; or a run of one stage forgets what all others cost."""
    monkeypatch.setattr(stages.costs, "COSTS_FILE", tmp_path / "seconds.json")
    assert stages.costs.recorded() == {}
    stages.costs.record({"unit": {"tests/a.py": 1.04}, "spark": {"tests/b.py": 30}}, {"a": 9, "b": 3.14, "c": 0.2})
    stages.costs.record({"unit": {"tests/c.py": 2}, "views": {}}, {"a": 0.2})
    assert stages.costs.recorded() == {"unit": {"tests/c.py": 2}, "spark": {"tests/b.py": 30}, "tests": {"b": 3.1}}


def test_the_figures_name_the_tests_that_took_longest(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the reader of the figures cannot see which test makes the run long."""
    monkeypatch.setattr(stages.costs, "LAST_RUN", tmp_path / "build" / "seconds.json")
    stages.costs.remember({"a": 1.0, "b": 3.0}, {"unit": 9.0})
    stages.costs.remember({"a": 4.0, "c": 2.0}, {})
    assert stages.costs.most_expensive(2) == ["SECONDS 4.0 test a", "SECONDS 3.0 test b", "SECONDS 9.0 process unit"]


def test_the_examples_of_the_runner_tell_the_truth(stages: ModuleType) -> None:
    """An example that no longer holds teaches a reader something false."""
    assert doctest.testmod(stages) == doctest.TestResults(failed=0, attempted=3)
    assert doctest.testmod(stages.costs) == doctest.TestResults(failed=0, attempted=2)
