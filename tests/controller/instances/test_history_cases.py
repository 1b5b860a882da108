"""A history is reduced as the known cases say, which are data, and whenever it has become too long.

The cases name commands in words: ``Run``, ``RunSink`` and ``CreateDataflow`` are each a `Create` here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.controller.instances.history import History, reduced
from strandline.frontier import EMPTY, Frontier
from strandline.instance.commands import Advance, Collection, Output, RunDataflow, RunIngestion, RunMaterialization
from strandline.instance.protocol.messages import (
    AllowCompaction,
    AllowWrites,
    CancelPeeks,
    Command,
    Create,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    RunIndex,
    Runnable,
    Schedule,
    UpdateConfiguration,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec

CASES = json.loads((Path(__file__).parents[2] / "cases" / "command_history.json").read_text())
REDUCTIONS = [case for part in ("storage_reduce", "compute_reduce") for case in CASES[part] if "in" in case]
ORDERS = {
    part: case["out_order"] for part in CASES for case in CASES[part] if isinstance(case, dict) and "out_order" in case
}

NO_COLUMNS = Schema(())
ONE_COLUMN = Schema((Column("a", "int"),))


def collection(name: str) -> Collection:
    """Return a collection without columns."""
    return Collection(name, f"shard-{name}", NO_COLUMNS)


def ingestion(name: str, *outputs: str, version: str = "") -> RunIngestion:
    """Return a source that feeds ``outputs``."""
    return RunIngestion(
        name, tuple(Output(collection(each)) for each in outputs), "files", {"version": version}, "remap", "progress"
    )


def view(name: str, *inputs: str) -> RunDataflow:
    """Return a view without stages."""
    return RunDataflow(collection(name), (), {}, {each: collection(each) for each in inputs}, {}, frozenset())


def sink(name: str, *inputs: str) -> RunMaterialization:
    """Return a materialization of ``inputs``."""
    spec = MaterializationSpec(name, (Binding("v", "t", ("a",), ONE_COLUMN),))
    return RunMaterialization(spec, "log", "duckdb", {}, tuple(collection(each) for each in inputs), continues=False)


def index(of: str) -> RunIndex:
    """Return an index without a key."""
    return RunIndex(collection(of), ())


def named(texts: Sequence[str], exports: dict[str, tuple[str, ...]]) -> Iterator[Command]:
    """Yield the commands that a case names; ``exports`` remembers what each creation exports."""
    for text in texts:
        name, inside = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
        words = re.findall(r"\[\]|\w+", inside)
        match name, words:
            case "Run", ["ingestion", one, "exports", two, "progress", three]:
                yield Create(one, (one, two, three), ingestion(one, two, three))
            case "Run", [one, version]:
                yield Create(one, (one,), ingestion(one, one, version=version))
            case "RunSink", [one]:
                yield Create(one, (one,), sink(one))
            case "CreateDataflow", [one, *_]:
                found = re.findall(r"\bu\d\b", inside)
                as_of = re.search(r"as_of (\d+)", inside)
                exports.setdefault(one, tuple(found))
                yield Create(one, exports[one], index("t"), int(as_of[1]) if as_of else None)
            case "AllowCompaction", [one, frontier]:
                yield AllowCompaction(one, EMPTY if frontier == "[]" else Frontier(int(frontier)))
            case "Schedule" | "AllowWrites", [export]:
                [one] = [each for each, theirs in exports.items() if export in theirs]
                yield Schedule(one) if name == "Schedule" else AllowWrites(one)
            case "UpdateConfiguration", [*settings]:
                merged = [each for each in settings if len(each) == 1]
                yield UpdateConfiguration({"shared": merged[-1]} | dict.fromkeys(merged, "1"))
            case "Peek", [uuid]:
                yield Peek(uuid, "i", b"", 3, 1)
            case "CancelPeek", [uuid]:
                yield CancelPeeks((uuid,))
            case _:
                raise AssertionError(text)


@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: case["name"])
def test_a_history_is_reduced_as_the_cases_say(case) -> None:
    """Damage: a replica that connects again runs what was dropped, or lacks what it should run."""
    exports: dict[str, tuple[str, ...]] = {}
    commands = list(named(case["in"], exports))
    same = isinstance(case["out"], str) and case["out"].startswith("same as in")
    assert reduced(commands) == (commands if same else list(named(case["out"], exports)))


def every_kind() -> list[Command]:
    """Return one command of each kind that a reduced history can have, of creations one that reads the other."""
    whats: dict[str, Runnable] = {"k": sink("k", "v"), "i": index("v"), "v": view("v", "s"), "s": ingestion("s", "s")}
    created = [Create(name, (name,), what) for name, what in whats.items()]
    others = [
        Advance(7),
        InitializationComplete(),
        Peek("p", "i", b"", 3, 1),
        UpdateConfiguration({"a": "1"}),
        CreateInstance("main", "r1"),
        Hello(1, 1, "here"),
    ]
    allowed = [each for name in ("s", "v") for each in (AllowWrites(name), AllowCompaction(name, Frontier(3)))]
    return [*created, *(Schedule(name) for name in whats), *allowed, *others]


def kind(command: Command, part: str) -> str:
    """Return what the cases of ``part`` call this kind of command."""
    if not isinstance(command, Create):
        return type(command).__name__
    if part == "compute_reduce":
        return "CreateDataflow"
    return "RunIngestion" if isinstance(command.what, RunIngestion) else "RunSink"


@pytest.mark.parametrize("part", ORDERS)
def test_the_order_is_that_of_the_cases(part: str) -> None:
    """Damage: a peek arrives when compaction has removed the time that it reads, or before the index that answers it.

    Writes are allowed before the initialization is complete, in a history of either kind.
    """
    wanted = [each.rstrip("*") for each in ORDERS[part]]
    if part == "storage_reduce":
        wanted.insert(wanted.index("InitializationComplete"), wanted.pop(wanted.index("AllowWrites")))
    found = [name for name in (kind(each, part) for each in reduced(every_kind())) if name in wanted]
    assert list(dict.fromkeys(found)) == [each for each in wanted if each != "RunOneshotIngestion"]
    assert sorted(found, key=wanted.index) == found


def test_all_kinds_have_a_place() -> None:
    """Damage: something is bound to a time, or looked at, before it is created."""
    found = [type(each).__name__ for each in reduced(every_kind())]
    assert list(dict.fromkeys(found)) == [
        "Hello",
        "CreateInstance",
        "UpdateConfiguration",
        "Create",
        "Schedule",
        "Peek",
        "AllowCompaction",
        "AllowWrites",
        "InitializationComplete",
        "Advance",
    ]


def test_a_creation_follows_what_it_reads() -> None:
    """Damage: a replica is asked to read a collection that it does not know yet."""
    created = [each.id for each in reduced(every_kind()) if isinstance(each, Create)]
    assert created == ["s", "v", "k", "i"]


def test_creations_that_read_each_other_keep_their_order() -> None:
    """Damage: between the two halves of a redefinition, the controller stops."""
    circle = [Create("a", ("a",), view("a", "b")), Create("b", ("b",), view("b", "a")), Create("c", ("c",), view("c"))]
    assert [each.id for each in reduced(circle)] == ["c", "a", "b"]


def test_a_history_is_never_much_longer_than_what_runs() -> None:
    """Damage: after a day of peeks the controller's memory is full, and a replica receives all of them again."""
    kept = History()
    for number in range(20):
        kept.append(Create(f"i{number}", (f"i{number}",), index("v"), as_of=0))
        kept.append(Schedule(f"i{number}"))
    lengths = []
    for time in range(1_000):
        kept.append(Peek(str(time), "i0", b"", time, 1))
        kept.append(AllowCompaction("i0", Frontier(time)))
        kept.answered(str(time))
        lengths.append(len(kept))
    assert max(lengths) <= 2 * 41 + 1
    assert len(kept.reduced()) == len(kept) == 40


def test_a_history_is_reduced_when_it_is_twice_as_long_as_it_was_then() -> None:
    """Damage: each command costs as much as all before it."""
    kept, lengths = History(), []
    for number in range(8):
        kept.append(UpdateConfiguration({"a": str(number)}) if number else Peek("p", "i", b"", 1, 1))
        lengths.append(len(kept))
    assert lengths == [1, 2, 2, 3, 4, 2, 3, 4]


def test_an_answered_peek_is_in_no_history() -> None:
    """Damage: a replica answers a second time, or works for a client that has its answer."""
    kept = History()
    peeks = [Peek(uuid, "i", b"", 1, 1) for uuid in ("one", "two", "three")]
    for peek in peeks:
        kept.append(peek)
    kept.answered("two")
    kept.answered("unknown")
    assert kept.reduced() == (peeks[0], peeks[2])
    kept.append(CancelPeeks(("one", "three")))
    assert kept.reduced() == ()


def test_a_definition_without_exports_or_with_those_of_another_is_refused() -> None:
    """Damage: something runs that no command can end."""
    what = index("v")
    with pytest.raises(AssertionError, match="exports nothing"):
        reduced([Create("i", (), what)])
    with pytest.raises(AssertionError, match="both export i"):
        reduced([Create("i", ("i",), what), Create("j", ("i",), what)])
