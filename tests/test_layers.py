"""The house has floors, and no arrow runs up: which module may import which, read from the source.

Every import counts: at the top of a module, inside a function, and under ``TYPE_CHECKING`` (a type is knowledge too).
So does the name of a module as a text, where modules are imported by name when they are chosen (`BY_NAME`).
The floors are those of ARCHITECTURE.md.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args
from unittest.mock import Mock

import pytest

from strandline.algebra.nodes import Node
from strandline.instance.instance import Instance

SOURCE = Path(__file__).resolve().parent.parent / "src"

#: Lowest first.  A room imports only rooms on lower floors; rooms on one floor do not know of each other.
FLOORS = (
    ("errors", "lazily", "protofile"),
    ("extras", "options"),
    ("frontier", "algebra", "store"),
    ("problem",),
    ("connections", "persist"),
    ("plane",),
    ("engine", "materialize"),
    ("sources", "compute"),
    ("instance",),
    ("controller",),
    ("wiring",),
    ("client", "datasource"),
    ("serving",),
    ("console",),
    ("bench",),
    ("",),  # the package itself, which only names what is public
    ("cli",),
    ("__main__",),  # `python -m strandline`
    ("testing",),  # shipped for outside authors; may know everything, and is known as `KNOWN_TO` says
)
#: Who may import `testing`: the benchmark of an environment runs one over lists, of which there is one engine; and
#: `driver check` runs the contract.
KNOWN_TO = frozenset({("bench", "testing"), ("cli", "testing")})
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

#: The floors inside a room, lowest first, of its own rooms and of the modules that stand beside these.
INNER = {
    "persist": (("notices",), ("shard",), ("handles",), ("upkeep",), ("client",), ("together",), ("fsck",)),
    "store": (
        ("clock", "postgres_forms", "protocols", "seal", "secret"),
        ("blob_kinds", "consensus_kinds", "memory", "unreliable"),
    ),
    "materialize": (
        ("protocol", "status"),
        ("driver", "feed", "log", "spool", "stores"),
        ("reduce", "wire", "schedule"),
        ("reduced",),
        ("transfer",),
        ("drivers", "runtime"),
        ("splits",),
    ),
    "materialize.drivers": (  # no endpoint knows of another one
        ("tiles", "threads"),
        ("rows", "sql"),
        ("staged",),
        ("delta", "duckdb", "files", "iceberg", "kafka", "mariadb", "postgres", "redis", "sqlite", "webhook"),
    ),
    "engine": (
        ("session",),
        ("frames",),
        ("asked",),
        ("arrangements", "sql"),
        ("parts",),
        ("prepared",),
        ("files",),
        ("messages", "union"),
        ("early", "spark"),
    ),
    "controller": (
        ("instances", "location"),
        ("assembly", "holding", "planning", "retention", "standing", "language"),
        ("commanded", "health", "readers", "syncing"),
        ("introspection", "writing"),
        ("core",),
        ("asking", "defining"),
        ("observing", "preparing"),
    ),
    "sources": (
        ("kinds", "reclock", "spec"),
        ("question", "reader", "status"),
        ("envelopes", "readers", "remap"),
        ("steps",),
        ("ingest",),
    ),
    "datasource": (
        ("rows",),
        ("opened",),
        ("pinned",),
        ("stream",),
        ("source",),
        ("sessions",),
    ),
    "sources.readers": (  # no upstream knows of another one
        ("avro_columns", "new_columns", "recorded", "sampled"),
        ("tabular",),
        ("clock", "delta", "files", "generators", "iceberg", "kafka", "postgres", "webhook"),
    ),
    "compute": (
        ("plan", "rules", "sink"),
        ("lookups", "stage"),
        ("care", "sides"),
        ("step",),
        ("explain", "tick"),
    ),
    "compute.plan": (
        ("asked", "sql"),
        ("keys",),
        ("scalars",),
        ("aggregate", "matching", "meaning"),
        ("relations",),
        ("subqueries",),
        ("select",),
        ("query",),
        ("view",),
    ),
}

SLIVER_LINES = 40
"""A module with fewer lines of code (no blank line, comment or docstring) is folded into the only one that reads it."""
APART = ("compute.rules", "engine.early", "materialize.drivers", "materialize.wire.kind", "sources.readers")
"""What is named one by one where kinds are chosen: rules, engines, drivers, readers."""

#: Libraries that tie code to one outside system → the modules that may import them.
CLIENTS = ("store", "materialize.drivers", "sources", "testing")
TIED = {
    # datasource is what Spark calls; bench measures plain Spark beside ours; the demo proves by Spark alone
    "pyspark": ("engine", "wiring", "datasource", "testing", "bench", "cli.demo"),
    "py4j": ("engine",),
    # the demo's proof, and benchmarks' readers and peers, use the endpoint's own client
    "duckdb": (*CLIENTS, "cli.demo", "bench.sources.watcher", "bench.endpoints.tables"),
    "sqlite3": (*CLIENTS, "cli.demo", "bench.instances.idle"),  # the latter counts the commits of another process
    # readers, endpoints and `doctor` log in alike
    "psycopg": (*CLIENTS, "connections"),
    "pymysql": (*CLIENTS, "connections"),
    "redis": CLIENTS,
    "boto3": CLIENTS,
    "obstore": (*CLIENTS, "engine"),  # the engine checks the footers of its parts where they are
    "fsspec": CLIENTS,
    "kafka": CLIENTS,
    "confluent_kafka": (*CLIENTS, "connections"),
    "deltalake": (*CLIENTS, "bench.endpoints.tables"),
    "pyiceberg": (*CLIENTS, "connections"),  # reader and endpoint ask one catalog, and understand its refusals alike
    "starlette": ("console",),
    "uvicorn": ("console",),
    "prometheus_client": ("console",),
    "opentelemetry": ("console",),
    "pyarrow.flight": ("instance.carriers", "serving", "bench.served"),  # pyarrow itself is the vocabulary of rows
}


#: The rooms that measure and test others, and so may import what is private to them.
LOOK_INSIDE = ("bench", "testing")

#: What a person may choose between: only the wiring names these, beside each other and what measures and tests them.
CONCRETE = (
    "store.blob_kinds",
    "store.consensus_kinds",
    "engine.early",
    "engine.spark",
    "engine.session.s3a",
    "engine.parts.part_objects",
    "engine.files",
    "sources.readers",
    "materialize.drivers",
)
CHOOSES = ("wiring", "bench", "testing")


#: Where texts name modules that are imported when they are chosen: readers and drivers.
BY_NAME = frozenset({"wiring.registry"})
#: Who imports a module by a name that it is given: public names, as ``TYPE_CHECKING`` has them; readers and drivers;
#: the caller's own functions, and a driver of one's own for `driver check`.
IMPORTS_A_NAME = frozenset({"lazily", "wiring.registry", "engine.session.functions", "cli.endpoints"})

#: A node is taken apart only where its meaning is: its declaration, its care, its rules, its plan, its SQL, its lists;
#: and where keys and columns are followed through it, which leaves alone what it does not know.
TAKES_NODES_APART = (
    "algebra.nodes",
    "algebra.careful",
    "algebra.judged",
    "compute.lookups",
    "compute.plan",
    "compute.rules",
    "engine.sql.rendering",
    "testing.lists.list_plans",
)


#: The rooms that command an instance and read its reports, and what of it they never see.
BEFORE_THE_INSTANCE = ("controller", "client")
INSIDE_THE_INSTANCE = frozenset(f"strandline.instance.running.{name}" for name in ("deliveries", "sources", "views"))
RUNS_THERE = frozenset(f"{dash}{name}" for name in ("deliveries", "sources", "tables", "views") for dash in ("", "_"))


@dataclass(frozen=True, slots=True)
class Import:
    """Module ``importer`` (relative to the package: ``persist.shard.machine``) imports ``imported`` (absolute)."""

    importer: str
    imported: str
    for_types_only: bool = False

    @property
    def inside(self) -> str | None:
        """What is imported, relative to the package; None if it is someone else's."""
        first, _, rest = self.imported.partition(".")
        return rest if first == "strandline" else None


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports_of(module: str, text: str, known: frozenset[str]) -> Iterator[Import]:
    """Yield what the source ``text`` of ``module`` imports; ``from a import b`` is ``a.b`` where that is a module."""

    def visit(node: ast.AST, *, for_types: bool) -> Iterator[Import]:
        match node:
            case ast.Import(names):
                for name in names:
                    yield Import(module, name.name, for_types)
            case ast.ImportFrom(origin, names) if origin is not None:
                for name in names:
                    whole = f"{origin}.{name.name}"
                    yield Import(module, whole if whole in known else origin, for_types)
            case ast.Constant(str(name)) if module in BY_NAME and name in known - TIED.keys():
                yield Import(module, name, for_types)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, for_types=for_types or _is_type_checking(node))

    return visit(ast.parse(text), for_types=False)


def modules() -> Mapping[str, Path]:
    """Return every module of the package by its name relative to the package, a package by its own name."""
    found = {}
    for path in sorted((SOURCE / "strandline").rglob("*.py")):
        parts = path.relative_to(SOURCE / "strandline").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def all_imports() -> list[Import]:
    """Return every import in the package."""
    here = modules()
    known = frozenset(f"strandline.{name}".rstrip(".") for name in here) | TIED.keys()
    return [each for name, path in here.items() for each in imports_of(name, path.read_text(), known)]


def upward(imports: list[Import]) -> list[str]:
    """Return the imports that go up, or to a neighbour on the same floor."""
    faults = []
    for each in imports:
        if each.inside is None:
            continue
        below, above = each.inside.partition(".")[0], each.importer.partition(".")[0]
        if below != above and (above, below) not in KNOWN_TO and not FLOOR[below] < FLOOR[above]:
            faults.append(f"{each.importer or 'strandline'} imports {each.imported}")
    return faults


def upward_inside(room: str, imports: list[Import]) -> list[str]:
    """Return the imports inside ``room`` that go up, or to a neighbour on the same inner floor."""
    floor = {name: number for number, names in enumerate(INNER[room]) for name in names}
    return [
        f"{each.importer} imports {each.imported}"
        for each in imports
        if (between := child_arrow(room, each)) is not None and not floor[between[1]] < floor[between[0]]
    ]


def child_arrow(room: str, each: Import) -> tuple[str, str] | None:
    """Return which child of ``room`` imports which other one by this import; None if it is not between two."""
    above, below = child(room, each.importer), child(room, each.inside or "")
    return (above, below) if above and below and above != below else None


def child(room: str, module: str) -> str:
    """Return the room or module directly in ``room`` that ``module`` is or is in; an empty text if there is none."""
    inside = f"{module}."
    return inside.removeprefix(f"{room}.").partition(".")[0] if inside.startswith(f"{room}.") else ""


def misplaced(imports: list[Import]) -> list[str]:
    """Return the imports of a tied library by a module that must not know it."""
    faults = []
    for each in imports:
        tied = (library for library in TIED if f"{each.imported}.".startswith(f"{library}."))
        allowed = TIED.get(next(tied, ""))
        if allowed is None or (each.for_types_only and each.imported.startswith("pyspark")):
            continue
        if not any(each.importer == room or each.importer.startswith(f"{room}.") for room in allowed):
            faults.append(f"{each.importer} imports {each.imported}")
    return faults


def _within(module: str, rooms: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{room}.") for room in rooms)


def chosen(imports: list[Import]) -> list[str]:
    """Return the imports of a concrete kind by a module that must not know which kinds there are."""
    faults = []
    for each in imports:
        if not _within(each.inside or "", CONCRETE) or _within(each.importer, (*CONCRETE, *CHOOSES)):
            continue
        if each.importer.partition(".")[0] != (each.inside or "").partition(".")[0]:
            faults.append(f"{each.importer} imports {each.imported}")
    return faults


def doors(text: str) -> set[str]:
    """Return what the source ``text`` of a package names in ``__all__``."""
    for at in ast.parse(text).body:
        match at:
            case ast.Assign([ast.Name("__all__")], listed):
                return set(ast.literal_eval(listed))
    return set()


def entered(imports: list[Import]) -> dict[str, str]:
    """Return the modules by which a room enters another one, each with a module that does so.

    What the wiring chooses between is not among them: its registries name these already.
    """
    found = {}
    for each in imports:
        above, below = each.importer.partition(".")[0], (each.inside or "").partition(".")[0]
        chosen_here = above == "wiring" and _within(each.inside or "", CONCRETE)
        if above != below and "." in (each.inside or "") and above not in LOOK_INSIDE and not chosen_here:
            found[each.inside or ""] = each.importer
    return found


def circle(imports: list[Import]) -> list[str]:
    """Return the modules of one import circle, or nothing."""
    ours = ((each.importer, each.inside) for each in imports if each.inside is not None)
    return _ring((above, below) for above, below in ours if above != below)


def circle_inside(room: str, imports: list[Import]) -> list[str]:
    """Return the rooms and modules directly in ``room`` that form one circle, or nothing."""
    return _ring(between for each in imports if (between := child_arrow(room, each)) is not None)


def _ring(arrows: Iterable[tuple[str, str]]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for above, below in arrows:
        graph.setdefault(above, set()).add(below)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_room_has_a_floor() -> None:
    """A room without a floor could import anything, and the contract would be silent about it."""
    rooms = {name.partition(".")[0] for name in modules()}
    assert rooms <= FLOOR.keys(), f"give a floor to: {sorted(rooms - FLOOR.keys())}"


def test_no_arrow_runs_up() -> None:
    """An upward import ties what must be simulated or replaced to what uses it: the lower room cannot stand alone."""
    assert upward(all_imports()) == []


def named() -> set[str]:
    """Return the rooms and modules that the tables of this file name, relative to the package."""
    inner = {f"{room}.{name}" for room, floors in INNER.items() for names in floors for name in names}
    tied = {module for modules in TIED.values() for module in modules}
    knowing = {room for pair in KNOWN_TO for room in pair}
    inside = {each.removeprefix("strandline.") for each in INSIDE_THE_INSTANCE}
    lists = (LOOK_INSIDE, CONCRETE, CHOOSES, TAKES_NODES_APART, BEFORE_THE_INSTANCE)
    return {*FLOOR, *inner, *APART, *tied, *knowing, *inside}.union(*lists)


def test_every_room_that_a_table_names_is_there() -> None:
    """Damage: what is allowed to a room that is gone is allowed to whatever takes its name; readers look for it."""
    assert named() - modules().keys() == set()


@pytest.mark.parametrize("room", INNER)
def test_every_module_of_a_room_with_floors_has_one(room: str) -> None:
    """A module without a floor could import anything in its room, and be imported by anything."""
    floors = {name for names in INNER[room] for name in names}
    assert {child(room, name) for name in modules()} - {"", *floors} == set()


@pytest.mark.parametrize("room", INNER)
def test_no_arrow_runs_up_inside_a_room(room: str) -> None:
    """A large room without floors of its own is a heap: each of its modules may need each other one."""
    assert upward_inside(room, all_imports()) == []


def code_lines(text: str) -> int:
    """Return how many lines of a module are code: neither blank, nor comments, nor texts that stand alone."""
    tree, beside = ast.parse(text), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            beside |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and at not in beside for at, line in lines)


def slivers(here: Mapping[str, str], imports: list[Import]) -> list[str]:
    """Return the modules of ``here`` (texts by names) that are small, and that one other module imports."""
    readers: dict[str, set[str]] = {}
    for each in imports:
        readers.setdefault(each.inside or "", set()).add(each.importer)
    small = (name for name, text in here.items() if code_lines(text) < SLIVER_LINES)
    return [name for name in small if len(readers.get(name, ())) == 1 and not _within(name, APART)]


def test_no_sliver_stands_apart_from_its_only_reader() -> None:
    """Damage: for one question a reader opens ten files, each of which sends them to the next."""
    here = {name: path.read_text() for name, path in modules().items() if path.name != "__init__.py"}
    assert slivers(here, all_imports()) == []


def test_no_room_holds_one_file() -> None:
    """A folder around one file is one more name to learn."""
    inside: dict[str, set[str]] = {}
    for name in modules():
        inside.setdefault(name.rpartition(".")[0], set()).add(name)
    assert [room for room, names in inside.items() if room in modules() and len(names) == 1] == []


def test_the_check_sees_a_planted_sliver() -> None:
    """A check that sees nothing would let the house fall into splinters again."""
    text = '"""What it is."""\n\n# why\nx = 1\n'
    assert code_lines(text) == 1
    assert slivers({"a.b": text}, [Import("a.c", "strandline.a.b")]) == ["a.b"]
    assert slivers({"a.b": text}, [Import("a.c", "strandline.a.b"), Import("a.d", "strandline.a.b")]) == []
    assert slivers({"a.b": "x = 1\n" * SLIVER_LINES}, [Import("a.c", "strandline.a.b")]) == []


def test_a_room_is_entered_by_the_modules_that_it_names_as_public() -> None:
    """Damage: what a room keeps to itself is used from outside, and can be changed no longer; or its door is not found.

    The ``__all__`` of each package names the modules that other rooms may import, and no others.
    """
    here = modules()
    packages = {name: doors(path.read_text()) for name, path in here.items() if path.name == "__init__.py"}
    public = {f"{package}.{name}" for package, names in packages.items() for name in names} & here.keys()
    used = entered(all_imports())
    assert {module: used[module] for module in used.keys() - public} == {}, "private: enter by a public module"
    assert public - used.keys() == set(), "no other room uses it: take it from its package's `__all__`"


def test_the_check_sees_a_planted_way_into_a_room() -> None:
    """A check that sees nothing would let every module become public."""
    text = "from strandline.compute.sides import Sides"
    assert entered(list(imports_of("instance.tables", text, frozenset()))) == {"compute.sides": "instance.tables"}
    for module in ("compute.step", "testing.lists"):
        assert entered(list(imports_of(module, text, frozenset()))) == {}
    assert entered([Import("wiring.registry", "strandline.materialize.drivers.duckdb.kind")]) == {}
    assert doors('__all__ = ["a", "b"]') == {"a", "b"}


def test_modules_are_imported_by_name_in_few_places() -> None:
    """Damage: a module is imported by a text that no check of this file reads, and an arrow runs up unseen."""
    used = {name for name, path in modules().items() if "import_module" in path.read_text()}
    assert used == IMPORTS_A_NAME
    seen = list(imports_of("wiring.registry", 'KINDS = {"a": "strandline.a"}', frozenset({"strandline.a"})))
    assert [each.imported for each in seen] == ["strandline.a"]
    named = {each.imported for each in all_imports() if each.importer == "wiring.registry"}
    assert {"strandline.sources.readers.kafka.kind", "strandline.materialize.drivers.duckdb.kind"} <= named


def test_modules_form_no_circle() -> None:
    """In a circle no module can be understood, tested or loaded first."""
    assert circle(all_imports()) == []


@pytest.mark.parametrize("room", [name for name, path in modules().items() if path.name == "__init__.py" and name])
def test_rooms_form_no_circle(room: str) -> None:
    """In a circle of rooms none can be understood or moved alone, though no module of theirs is in a circle."""
    assert circle_inside(room, all_imports()) == []


def test_libraries_stay_in_their_rooms() -> None:
    """Spark or a database's client outside its room would make that code impossible to simulate."""
    assert misplaced(all_imports()) == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("persist.machine", "from strandline.engine import session"),
        ("engine.parts", "import strandline.materialize.protocol.fsm"),
        ("sources.ingest", "def later():\n    from strandline.compute.tick import tick"),
        ("compute.step", "if TYPE_CHECKING:\n    from strandline.controller.writing import Oracle"),
        ("client.access", "from strandline.testing import doubles"),
        ("controller.core", "from strandline.testing.lists.list_engine import ListEngine"),
        ("errors", "import strandline"),
    ],
)
def test_the_check_sees_a_planted_upward_import(module: str, text: str) -> None:
    """A check that sees nothing would let the contract rot unnoticed."""
    assert len(upward(list(imports_of(module, text, frozenset())))) == 1


def test_the_check_lets_honest_imports_pass() -> None:
    """A check that refuses what is allowed would be switched off."""
    text = "import os\nfrom strandline.persist.shard.batch import Batch\nfrom strandline import errors\n"
    assert upward(list(imports_of("engine.parts", text, frozenset({"strandline.errors"})))) == []


@pytest.mark.parametrize(
    ("room", "module", "text"),
    [
        ("compute", "compute.rules.linear", "from strandline.compute.plan import view"),
        ("compute.plan", "compute.plan.keys", "from strandline.compute.plan.scalars.context import Scope"),
        ("compute", "compute.care", "from strandline.compute.step import StageRun"),
        ("sources", "sources.readers.files.reader", "from strandline.sources import remap"),
        ("sources.readers", "sources.readers.delta.reader", "from strandline.sources.readers.files import reader"),
        ("persist", "persist.shard.machine", "from strandline.persist.handles.write import WriteHandle"),
    ],
)
def test_the_check_sees_a_planted_upward_import_inside_a_room(room: str, module: str, text: str) -> None:
    """A check that sees nothing would let a room become a heap."""
    known = frozenset(f"strandline.{name}" for name in modules())
    assert len(upward_inside(room, list(imports_of(module, text, known)))) == 1


def test_the_check_sees_a_planted_circle() -> None:
    """A check that sees nothing would let a circle grow unnoticed."""
    ring = [Import("a", "strandline.b"), Import("b", "strandline.c"), Import("c", "strandline.a")]
    assert set(circle(ring)) == {"a", "b", "c"}
    assert circle(ring[:2]) == []
    rooms = [Import("r.a.one", "strandline.r.b.two"), Import("r.b.three", "strandline.r.a.four")]
    assert circle(rooms) == []
    assert set(circle_inside("r", rooms)) == {"a", "b"}
    assert circle_inside("r", rooms[:1]) == []


def test_only_the_wiring_names_concrete_kinds() -> None:
    """A store or driver that other rooms know by name cannot be replaced, nor another one added in one place."""
    assert chosen(all_imports()) == []


def test_the_check_sees_a_planted_concrete_kind() -> None:
    """A check that sees nothing would let every room choose its own store."""
    text = "from strandline.store.consensus_kinds.sqlite import SQLiteConsensus"
    assert len(chosen(list(imports_of("controller.core", text, frozenset())))) == 1
    assert chosen(list(imports_of("wiring.assemble", text, frozenset()))) == []


@pytest.mark.parametrize(
    "text",
    ["import pyspark", "from pyspark.sql import functions", "import duckdb", "from pyarrow import flight"],
)
def test_the_check_sees_a_planted_library(text: str) -> None:
    """A check that sees nothing would let Spark seep into the pure rooms."""
    assert len(misplaced(list(imports_of("compute.step", text, frozenset(TIED))))) == 1
    assert misplaced(list(imports_of("compute.step", "import pyarrow.parquet", frozenset(TIED)))) == []


def test_types_of_spark_may_be_named_anywhere() -> None:
    """The public face returns Spark's DataFrame; an annotation loads nothing."""
    text = "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"
    assert misplaced(list(imports_of("client", text, frozenset()))) == []


def looks_inside(module: str, text: str) -> list[str]:
    """Return where ``text`` of ``module`` takes hold of what an instance runs, instead of asking the instance."""
    if not _within(module, BEFORE_THE_INSTANCE):
        return []
    imported = {each.imported for each in imports_of(module, text, INSIDE_THE_INSTANCE)} & INSIDE_THE_INSTANCE
    found = [f"{module} imports {each}" for each in sorted(imported)]
    for at in ast.walk(ast.parse(text)):
        match at:
            case ast.Attribute(ast.Name("instance") | ast.Attribute(attr="instance"), attr) if attr in RUNS_THERE:
                found.append(f"{module}:{at.lineno}: takes hold of the instance's {attr}")
    return found


def test_controller_and_instance_meet_in_commands_calls_and_reports() -> None:
    """Damage: what the controller takes hold of in the instance can never run in another process."""
    assert [each for name, path in modules().items() for each in looks_inside(name, path.read_text())] == []
    shown = {name for name in vars(Instance(*[Mock(lanes=1)] * 4)) if not name.startswith("_")}
    assert shown == {"watch"}, "what an instance runs is private; give it a call, or its report a value"


@pytest.mark.parametrize(
    "text",
    [
        "from strandline.instance.running.views import Dataflows",
        "from strandline.instance.running import views",
        "def f(core):\n    return core.require_writing().instance.views",
        "def f(instance):\n    return instance._tables['t']",
    ],
)
def test_the_check_sees_a_planted_look_into_the_instance(text: str) -> None:
    """A check that sees nothing would let the wall fall again."""
    for module in ("controller.core", "client.writing"):
        assert len(looks_inside(module, text)) == 1
    assert (
        looks_inside("controller.core", "def f(report, instance):\n    return report.tasks, instance.runs('t')") == []
    )


def nodes_taken_apart(module: str, text: str) -> list[str]:
    """Return where ``text`` of ``module`` matches on the class of a plan node, in a module that does not own that."""
    if _within(module, TAKES_NODES_APART):
        return []
    names = {each.__name__ for each in get_args(Node)} - {"Get"}  # a leaf is a name, not a meaning
    found = []
    for at in ast.walk(ast.parse(text)):
        match at:
            case ast.MatchClass(cls=ast.Name(id=name)) if name in names:
                found.append(f"{module}:{at.lineno}: matches on {name}")
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                asked = {each.id for each in ast.walk(kinds) if isinstance(each, ast.Name)} & names
                found += [f"{module}:{at.lineno}: asks for {name}" for name in sorted(asked)]
    return found


def test_a_node_is_taken_apart_only_where_its_meaning_is() -> None:
    """Damage: a new node is a search through all rooms for places that match on nodes."""
    assert [each for name, path in modules().items() for each in nodes_taken_apart(name, path.read_text())] == []
    planted = "def f(n):\n    match n:\n        case Join():\n            return isinstance(n, Reduce | Filter)"
    assert len(nodes_taken_apart("compute.step", planted)) == 3, "a check that sees nothing"
