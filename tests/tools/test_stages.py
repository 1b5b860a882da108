"""The stage runner: each test in one stage, none lost, every skip said aloud."""

from __future__ import annotations

import doctest
import importlib.util
import itertools
import sys
import tomllib
from pathlib import Path
from types import ModuleType

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
    assert {each.partition(":")[0] for each in settings["markers"]} == set(stages.STAGE_BY_MARKER)


def test_a_report_counts_every_test_and_gives_the_reason_of_each_skip(stages: ModuleType, tmp_path: Path) -> None:
    """A skip without its reason hides a test that has not run for months."""
    report = tmp_path / "report.xml"
    report.write_text("""<testsuites><testsuite>
        <testcase classname="a" name="passes"><properties>
            <property name="FIGURE" value="S1 7 5 pass"/>
            <property name="FIGURE" value="S2 7 &gt;=9 miss"/>
            <property name="FIGURE" value="rate 7 &gt;=9 told"/></properties></testcase>
        <testcase classname="a" name="fails"><failure message="no"/></testcase>
        <testcase classname="a" name="breaks"><error message="no"/></testcase>
        <testcase classname="a" name="waits"><skipped type="pytest.skip" message="no PostgreSQL here"/></testcase>
        </testsuite></testsuites>""")
    tally = stages.read_report(report)
    assert str(tally) == "1 passed, 2 failed, 1 skipped"
    assert tally.skips == ["a::waits: no PostgreSQL here"]
    assert tally.figures == ["FIGURE S1 7 5 pass", "FIGURE S2 7 >=9 miss", "FIGURE rate 7 >=9 told"]
    assert tally.missed == ["FIGURE S2 7 >=9 miss"], "a speed is told: it fails nobody's run"


@pytest.mark.parametrize(
    ("body", "passed", "failed"),
    [
        ("def test_a(): pass\ndef test_b(): pass", 2, 0),
        ("def test_a(): pass\ndef test_b(): assert False", 1, 1),
        ("def test_a(): pass\ndef test_b():\n    import os\n    os._exit(0)", 0, 2),
    ],
    ids=["all pass", "one fails", "the process dies and says it is well"],
)
def test_no_collected_test_is_lost(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, passed: int, failed: int
) -> None:
    """A process that dies in the middle must not look like one that had less to do."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(body)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    monkeypatch.setattr(stages, "ROOT", tmp_path)
    monkeypatch.setattr(stages, "call_pytest", lambda *given: [sys.executable, "-m", "pytest", *given])
    monkeypatch.setattr(
        stages,
        "run",
        lambda command, *, quiet=False, minutes=1, run=stages.run: run(
            [each for each in command if each[:8] != "--stage="], quiet=True, minutes=minutes
        ),
    )
    tally = stages.run_tests("unit", {"test_it.py": 2}, tmp_path, quiet=True)
    assert (tally.passed, tally.failed) == (passed, failed)


def test_the_examples_of_the_runner_tell_the_truth(stages: ModuleType) -> None:
    """An example that no longer holds teaches a reader something false."""
    assert doctest.testmod(stages) == doctest.TestResults(failed=0, attempted=2)
