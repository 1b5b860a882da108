"""Planted mistakes: where they stand, which are left out, which tests run them, and how a run of these ends."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

import mutants
import mutations
import reach
from mutant_copy import Copy

ROOT = Path(__file__).resolve().parent.parent.parent


def wrong(body: str) -> set[str]:
    """Return what a function's only line may become."""
    source = f"async def f(self, a, b, c):\n    {body}\n"
    return {each.planted(source).splitlines()[1].strip() for each in mutations.mutations(source)}


@pytest.mark.parametrize(
    ("right", "mistakes"),
    [
        ("return a < b", {"return (a <= b)"}),
        ("return a is None", {"return (a is not None)"}),
        ("return a < b <= c", {"return (a <= b <= c)", "return (a < b < c)"}),
        ("return a and b", {"return (a or b)", "return a", "return b"}),
        ("return not a", {"return a"}),
        ("return a + b", {"return (a - b)"}),
        ("return a[1]", {"return a[2]", "return a[0]"}),
        ("return a[0]", {"return a[1]", "return a[-1]"}),
        ("return a[b:]", {"return a[(b + 1):]"}),
        ("return a if b else c", {"return (c if b else a)"}),
        ("await a(b)", {"pass"}),
        ("self.a = b", {"pass"}),
        ("a += 1", {"pass", "a -= 1", "a += 2", "a += 0"}),
        ("return max(a)", {"return min(a)"}),
        ("return sorted(a, key=b)", {"return list(a)"}),
        ("return any(a)", {"return all(a)"}),
        ("return [x for x in a if x]", {"return [x for x in a]"}),
        ("return sum(x for x in a if x)", {"return sum(x for x in a)"}),
        ("return (a, b)", {"return (b, a)"}),
        ("return self.f(a, b)", {"return self.f(b, a)"}),
        ("return a.lower", {"return a.upper"}),
        ("return a.f(b=True)", {"return a.f(b=False)"}),
    ],
)
def test_each_kind_of_mistake_is_planted(right: str, mistakes: set[str]) -> None:
    """A kind that is never planted leaves the tests blind for it, and the figure high."""
    assert wrong(right) == mistakes


@pytest.mark.parametrize(
    "harmless",
    [
        "assert a < b",
        "raise ValueError(a + b)",
        "log.info(a + b)",
        "return f'{a + b}'",
        "x: dict[int, a | b]",
        "return 'a' + b",
        "return 4096",
    ],
)
def test_what_promises_nothing_is_left_as_it_is(harmless: str) -> None:
    """Damage: a reader of the survivors finds noise, and stops reading."""
    assert wrong(harmless) == set()


def test_a_mistake_without_effect_is_known() -> None:
    """Counted as survivors, these would say that tests are missing where none can be written."""
    source = "def f(a):\n    return (a, a)\n"
    (only,) = mutations.mutations(source)
    assert mutations.changes_nothing(source, only)
    assert not mutations.changes_nothing(source, mutations.Mutation("x", 2, None, 21, 27, "(a, 1)"))


def test_offsets_count_bytes() -> None:
    """A sign of two bytes would move every mistake behind it by one, into text that no person would write."""
    source = "def f(a, b):\n    return ('é', a < b)\n"
    assert [each.planted(source) for each in mutations.mutations(source)] == [source.replace("a < b", "(a <= b)")]


def test_every_module_can_carry_each_of_its_mistakes() -> None:
    """A mistake that is no Python is noticed by every test, and says nothing of any."""
    path = ROOT / "src" / "strandline" / "frontier.py"
    source = path.read_text()
    found = mutations.mutations(source)
    assert len(found) > 30
    for each in found:
        ast.parse(each.planted(source))


def test_the_nearest_and_fastest_tests_come_first() -> None:
    """In another order a mistake costs minutes, and a sample of hundreds a night."""
    path = "src/strandline/persist/shard/state.py"
    ran = frozenset({f"{path}:f#0"})
    known = reach.Reach(
        tests={
            "tests/compute/test_a.py::fast": reach.Reached(0.1, ran),
            "tests/persist/shard/test_b.py::slow": reach.Reached(9.0, ran),
            "tests/persist/shard/test_b.py::fast": reach.Reached(0.1, ran),
            "tests/persist/test_c.py::other": reach.Reached(0.1, frozenset({f"{path}:g#0"})),
        }
    )
    near = ["tests/persist/shard/test_b.py::fast", "tests/persist/shard/test_b.py::slow"]
    assert known.running(path, "f#0", ("tests/",)) == [*near, "tests/compute/test_a.py::fast"]
    assert known.running(path, "f#0", ("tests/persist",)) == near
    assert len(known.running(path, None, ("tests/",))) == 4
    assert mutants.split(near, known) == (near[:1], near[1:])


def test_tables_and_programs_are_met_by_what_imports_them() -> None:
    """No test is seen to run them, so their mistakes would meet none."""

    def mutant(path: str, block: str | None) -> mutants.Mutant:
        return mutants.Mutant(
            f"src/strandline/{path}", "materialize", mutations.Mutation("x", 1, block, 0, 0, ""), "", ""
        )

    wire = "src/strandline/materialize/wire"
    ran = reach.Reached(1.0, frozenset({f"{wire}/process/child.py:Child.start#0"}))
    known = reach.Reach(tests={"tests/materialize/wire/test_connector.py::test_a": ran})
    assert mutants.meeting(mutant("materialize/wire/process/guard.py", "main#0"), known) == [*known.tests]
    assert mutants.meeting(mutant("materialize/wire/process/child.py", "Child.send#0"), known) == []
    assert mutants.meeting(mutant("materialize/wire/process/child.py", None), known) == [*known.tests]
    functions = mutants.importing("src/strandline/compute/plan/sql.py")
    assert "src/strandline/compute/plan/scalars/definite.py" in functions
    assert "src/strandline/instance/live.py" not in functions


class Runs:
    """A copy in which no test fails; keeps which were run, and whether a JVM was there."""

    def __init__(self) -> None:
        self.ran: list[tuple[list[str], bool]] = []

    def write(self, path: str, text: str) -> None:
        """Plant nothing: no test is run."""

    def run(self, files: Iterable[str], chosen: Iterable[str], *, seconds: float, spark: bool) -> int:
        """Keep what was to be run, and notice nothing."""
        self.ran.append(([reach.file_of(test) for test in chosen], spark))
        assert list(files) == self.ran[-1][0]
        return 0


def test_a_mistake_meets_servers_last_and_a_jvm_only_where_a_test_needs_it() -> None:
    """Servers take seconds to start, which each mistake would pay; without them half of the drivers meets no test."""
    path = "src/strandline/persist/shard/state.py"
    mutation = next(each for each in mutations.mutations((ROOT / path).read_text()) if each.block)
    kinds = {"a_server": (False, True), "both": (True, True), "c_spark": (True, False), "d_unit": (False, False)}
    blocks = frozenset({f"{path}:{mutation.block}"})
    known = reach.Reach(tests={f"tests/persist/{n}.py::t": reach.Reached(1.0, blocks, *of) for n, of in kinds.items()})
    a, both, c, d = (reach.file_of(test) for test in known.tests)
    for spark, ran in ((True, [([d], False), ([c], True), ([a, both], True)]), (False, [([d], False), ([a], False)])):
        runs = Runs()
        mutant = mutants.Mutant(path, "persist", mutation, "", "")
        verdict = mutants.judge(cast("Copy", runs), mutant, known, spark=spark, histories=False)
        assert (verdict.outcome, runs.ran) == ("survived", ran)


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    """A lost block would let its mistakes survive untested."""
    known = reach.Reach({"t.py": "1"}, {"t.py::a": reach.Reached(0.5, frozenset({"b", "c"}), spark=True)})
    known.save(tmp_path / "reach.json")
    assert reach.load(tmp_path / "reach.json") == known
    (tmp_path / "earlier.json").write_text('{"files": {}, "blocks": [], "tests": {}}')
    assert reach.load(tmp_path / "earlier.json") == reach.Reach(), "its tests were others"
    known.forget(["t.py"])
    assert known == reach.Reach()


def test_every_room_and_its_tests_are_there() -> None:
    """A room that was moved would lose its mistakes, or the tests that notice them, unseen."""
    assert [room for room in mutants.ROOMS if not (ROOT / "src" / "strandline" / room).exists()] == []
    places = {path for group in (mutants.ROOMS, mutants.HISTORIES) for paths in group.values() for path in paths}
    assert [path for path in sorted(places) if not (ROOT / path).exists()] == []
    assert set(mutants.HISTORIES) <= set(mutants.ROOMS)


def test_each_reviewed_mistake_stands_in_the_code() -> None:
    """A review of code that is gone excuses nothing, and hides what took its place."""
    for (path, was, now), verdict in mutants.reviewed().items():
        assert verdict in {"equivalent", "missed"}
        source = (ROOT / path).read_text()
        lines = [each.planted(source).splitlines() for each in mutations.mutations(source)]
        planted = [tuple(map(str.strip, mutants.changed(source.splitlines(), each))) for each in lines]
        assert (was, now) in planted, f"{path}: no such mistake can be planted any more: {now}"


RUN = """
import json, sys, mutant_worker as worker
worker.CPU_S, worker.WALL_S = 8, 60
worker.adopt()
for line in sys.stdin:
    print(json.dumps(worker.run(worker.Task(**json.loads(line)), worker.Jvm())))
"""


def test_a_worker_records_notices_and_ends_what_does_not_end(tmp_path: Path) -> None:
    """A run that ends wrongly counts a mistake as noticed that was not, or hangs for the night."""
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "src" / "block_marks.py").write_text(reach.MARKS_SOURCE)
    right = "def less(a, b):\n    while False:\n        pass\n    return a < b\n"
    (tmp_path / "src" / "small.py").write_text(reach.marked(right, "small.py"))
    (tmp_path / "tests" / "test_small.py").write_text(
        textwrap.dedent("""
        from small import less

        def test_other():
            assert less(1, 2)

        def test_bound():
            assert not less(1, 1)
        """)
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file, answer = "tests/test_small.py", tmp_path / "answer"

    def run(chosen: list[str], *, record: bool = False) -> tuple[int | None, object]:
        task = {"root": str(tmp_path), "files": [file], "chosen": chosen, "stages": ["unit"], "record": record}
        task |= {"seconds": 0, "spark": False, "answer": str(answer)}
        done = subprocess.run(
            [sys.executable, "-c", RUN],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT / "tools",
        )
        return json.loads(done.stdout), json.loads(answer.read_text()) if answer.exists() else None

    both = [f"{file}::test_bound", f"{file}::test_other"]
    status, ran = run([], record=True)
    assert status == 0
    assert isinstance(ran, dict)
    assert {test: blocks for test, (_, blocks, _, _) in ran.items()} == {test: ["small.py:less#0"] for test in both}
    assert run(both) == (0, None)
    (tmp_path / "src" / "small.py").write_text(right.replace("a < b", "(a <= b)"))
    assert run(both) == (1, both[0])
    left = "import subprocess\n\nsleep = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    (tmp_path / "src" / "small.py").write_text(f"{left}open('left', 'w').write(str(sleep.pid))\n{right}")
    assert run(both) == (0, None)
    assert not Path(f"/proc/{(tmp_path / 'left').read_text()}").exists(), "a server that a fork leaves behind is ended"
    answer.unlink()
    (tmp_path / "src" / "small.py").write_text(right.replace("while False", "while True "))
    assert run(both) == (None, None)
