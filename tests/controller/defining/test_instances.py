"""Instances: what defining one does to the catalog, what keeps it there, and what is refused.  Over lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from strandline.bench.environment import ITEMS, VIEWS, over_lists
from strandline.controller.asking.status import status
from strandline.controller.core import Core
from strandline.controller.defining import creating, definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import load
from strandline.controller.language.instances import AddReplica, DropReplica
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import InstanceItem, View
from strandline.errors import DefinitionError, InvalidUsage
from strandline.testing.simulation.kernel import run_sync

X = "CREATE INSTANCE X REPLICAS (a 'localhost:7071', b 'localhost:7072')"
TABLE = f"CREATE TABLE items ({ITEMS})"
TOTALS = VIEWS["totals"]


@pytest.fixture
def core() -> Core:
    """A location in memory, from which no replica can be reached."""
    return run_sync(Core.open(over_lists().assembly, Config(), Mode.FULL))


def do(core: Core, *texts: str) -> None:
    """Run definitions."""
    for text in texts:
        match parse(text):
            case Drop() as statement:
                run_sync(definitions.drop(core, statement))
            case (AddReplica() | DropReplica()) as statement:
                run_sync(creating.alter(core, statement))
            case statement:
                run_sync(create(core, cast("Any", statement)))


def replicas(core: Core) -> dict[str, str]:
    """Return the replicas of the instance."""
    return core.catalog.one("x", InstanceItem, "instance").replicas


def view(core: Core, name: str) -> View:
    """Return a view of the catalog."""
    return core.catalog.one(name, View, "view")


def test_an_instance_is_defined_and_its_replicas_are_changed_in_place(core: Core) -> None:
    """Damage: a replica that fails can only be replaced by dropping all views that run beside it."""
    do(core, X, TABLE, f"CREATE MATERIALIZED VIEW v IN INSTANCE x AS {TOTALS}")
    before = view(core, "v")
    assert replicas(core) == {"a": "localhost:7071", "b": "localhost:7072"}
    do(core, "ALTER INSTANCE x ADD REPLICA C '[::1]:7073'", "ALTER INSTANCE X DROP REPLICA A")
    assert replicas(core) == {"b": "localhost:7072", "c": "[::1]:7073"}
    do(core, "CREATE INSTANCE IF NOT EXISTS x REPLICAS ()")
    assert replicas(core) == {"b": "localhost:7072", "c": "[::1]:7073"}
    do(core, "CREATE OR REPLACE INSTANCE x REPLICAS ()")
    assert (replicas(core), view(core, "v")) == ({}, before)
    do(core, "DROP MATERIALIZED VIEW v", "DROP INSTANCE x", "DROP INSTANCE IF EXISTS x")
    assert core.catalog.find("x") is None


def test_an_instance_may_be_made_by_or_replace(core: Core) -> None:
    """Damage: a script that is run twice must know whether it was run."""
    do(core, X.replace("CREATE", "CREATE OR REPLACE"))
    assert replicas(core) == {"a": "localhost:7071", "b": "localhost:7072"}


@pytest.mark.parametrize(
    ("text", "fenced"),
    [
        ("ALTER INSTANCE x ADD REPLICA c 'localhost:7073'", False),
        ("CREATE OR REPLACE INSTANCE x REPLICAS (b 'localhost:7072', a 'localhost:7071')", False),
        ("ALTER INSTANCE x DROP REPLICA b", True),
        ("CREATE OR REPLACE INSTANCE x REPLICAS (a 'localhost:7071')", True),
        ("CREATE OR REPLACE INSTANCE x REPLICAS (a 'localhost:7071', b 'localhost:7073')", True),
        ("CREATE INSTANCE y REPLICAS (c 'localhost:7073')", False),
    ],
)
def test_a_replica_that_is_no_longer_there_is_fenced_out_by_the_same_change(text: str, fenced: bool) -> None:
    """Damage: a replica that was dropped because it is wrong goes on writing; or one more replica fences the others."""
    place = over_lists()
    first = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    do(first, X)
    run_sync(first.close())
    second = run_sync(Core.open(place.assembly, Config(), Mode.FULL))
    assert second.catalog.writes == 1, "replicas write under an epoch from the first generation on"
    do(second, text)
    assert second.catalog.writes == (2 if fenced else 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (X, "1:17 there is an instance 'X' already"),
        ("CREATE TABLE x (a INT)", "1:14 there is an instance 'X' already"),
        ("CREATE OR REPLACE INSTANCE items REPLICAS ()", "1:28 there is a table 'items' already"),
        ("CREATE INSTANCE IF NOT EXISTS items REPLICAS ()", "1:31 there is a table 'items' already"),
        ("CREATE INSTANCE __x REPLICAS ()", "1:17 '__x' cannot be a name"),
        ("ALTER INSTANCE xx ADD REPLICA c 'h:1'", "1:16 there is no instance 'xx'; did you mean 'x'?"),
        ("ALTER INSTANCE items DROP REPLICA a", "1:16 there is no instance 'items'"),
        ("ALTER INSTANCE x ADD REPLICA A 'h:1'", "1:30 instance 'X' has a replica 'a' already; drop it first"),
        ("ALTER INSTANCE x ADD REPLICA c 'localhost:7071'", "1:30 replica 'c' has the address of 'a'"),
        ("ALTER INSTANCE x DROP REPLICA aa", "1:31 there is no replica of instance 'X' called 'aa'; did you mean 'a'?"),
        (
            f"CREATE MATERIALIZED VIEW w\nIN INSTANCE xx AS {TOTALS}",
            "2:13 there is no instance 'xx'; did you mean 'x'?",
        ),
        (f"CREATE MATERIALIZED VIEW w IN INSTANCE items AS {TOTALS}", "1:40 there is no instance 'items'"),
        ("DROP INSTANCE x", "1:15 'X' is used by v; drop that first"),
        ("DROP TABLE x", "1:12 'X' is an instance; write DROP INSTANCE X"),
        ("DROP INSTANCE items", "1:15 'items' is a table; write DROP TABLE items"),
        ("DROP INSTANCE y", "1:15 there is no instance 'y'"),
    ],
)
def test_a_definition_that_cannot_be_is_refused_at_its_place(core: Core, text: str, said: str) -> None:
    """Damage: a view is left without the processes that run it; or an author looks for the mistake."""
    do(core, X, TABLE, f"CREATE MATERIALIZED VIEW v IN INSTANCE x AS {TOTALS}")
    before = core.catalog
    with pytest.raises(DefinitionError) as refused:
        do(core, text)
    position = refused.value.position
    assert position is not None
    assert f"{position.line}:{position.column} {refused.value.message}".startswith(said)
    assert core.catalog == before, "a refused definition changes nothing"


def test_an_instance_is_not_changed_by_an_environment_that_reads() -> None:
    """Damage: a reader takes replicas from the environment that writes."""
    place = over_lists()
    do(run_sync(Core.open(place.assembly, Config(), Mode.FULL)), X)
    reading = run_sync(Core.open(place.assembly, Config(), Mode.READ))
    there = X.replace("INSTANCE", "INSTANCE IF NOT EXISTS")
    for text in (X, there, X.replace("X", "y"), "ALTER INSTANCE x DROP REPLICA a"):
        with pytest.raises(InvalidUsage, match="opened read-only"):
            do(reading, text)


def test_an_instance_is_no_collection(core: Core) -> None:
    """Damage: a query that names an instance ends in an error of ours."""
    do(core, X)
    with pytest.raises(DefinitionError, match="there is no collection 'x'"):
        core.catalog.collection("x")


def test_views_of_two_instances_share_no_stage_and_views_of_one_do(core: Core) -> None:
    """Damage: two processes write to one shard, and fence each other for ever."""
    do(core, X, X.replace("X", "y", 1).replace("707", "708"), TABLE)
    places = {"here": "", "too": "", "one": "IN INSTANCE x", "two": "IN INSTANCE X", "other": "IN INSTANCE y"}
    for name, place in places.items():
        do(core, f"CREATE MATERIALIZED VIEW {name} {place} AS {TOTALS}")
    found = {name: view(core, name) for name in places}
    assert {name: each.instance for name, each in found.items()} == {
        "here": "",
        "too": "",
        "one": "x",
        "two": "x",
        "other": "y",
    }
    assert found["here"].stages, "the query has an internal stage"
    assert found["here"].stages == found["too"].stages
    assert found["one"].stages == found["two"].stages
    shards = [set(found[name].stages.values()) for name in ("here", "one", "other")]
    assert len(set.union(*shards)) == sum(map(len, shards))


def test_the_status_of_a_view_says_where_it_runs(core: Core) -> None:
    """Damage: an operator looks for a view in the wrong process."""
    do(core, X, TABLE, f"CREATE MATERIALIZED VIEW v IN INSTANCE x AS {TOTALS}")
    do(core, f"CREATE MATERIALIZED VIEW w AS {TOTALS}")
    told = run_sync(status(core))["collections"]
    assert (told["v"]["instance"], "instance" in told["w"], "instance" in told["items"]) == ("x", False, False)


def test_a_project_makes_instances_before_views_and_changes_their_replicas_in_place(core: Core, tmp_path: Path) -> None:
    """Damage: a project cannot be applied to a new location; or a new replica needs each view to be dropped."""
    files = {
        "strandline.yml": "location: data\ninstances: {y: {replicas: {A: 'localhost:7080'}}, none: {}}",
        "instances/x.sql": X,
        "tables/items.sql": TABLE,
        "views/v.sql": f"CREATE MATERIALIZED VIEW v IN INSTANCE x AS {TOTALS}",
        "views/w.sql": f"CREATE MATERIALIZED VIEW w IN INSTANCE Y AS {TOTALS}",
    }

    def applied(**changed: str) -> tuple[str, ...]:
        for name, text in {**files, **{name.replace("__", "/"): text for name, text in changed.items()}}.items():
            path = tmp_path / name.replace("_sql", ".sql").replace("_yml", ".yml")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return run_sync(apply(core, load(tmp_path))).created

    assert applied() == ("y", "none", "X", "items", "v", "w")
    assert core.catalog.one("y", InstanceItem, "instance").replicas == {"a": "localhost:7080"}
    assert core.catalog.one("none", InstanceItem, "instance").replicas == {}
    there = core.catalog
    assert applied() == ()
    assert core.catalog == there
    assert applied(instances__x_sql="CREATE INSTANCE x REPLICAS (b 'localhost:7072')") == ()
    assert replicas(core) == {"b": "localhost:7072"}
    assert core.catalog.unfenced, "the replica that is gone is fenced by the next generation: this one is the first"
    for text, said in (
        (f"CREATE MATERIALIZED VIEW v AS {TOTALS}", "'v': it was created with instance 'x'; put the"),
        (f"CREATE MATERIALIZED VIEW v IN INSTANCE y AS {TOTALS}", "'v': it was created with instance 'x'"),
    ):
        with pytest.raises(DefinitionError, match=f"views/v.sql: {said}"):
            applied(views__v_sql=text)
    with pytest.raises(
        DefinitionError, match="instances/x.sql: 'items': it was created with another kind: it is a table"
    ):
        applied(instances__x_sql="CREATE INSTANCE items REPLICAS ()", tables__items_sql="")


def test_no_process_is_a_replica_of_two_instances(core: Core) -> None:
    """Damage: two instances command one process in turn, and each ends what the other one runs."""
    do(core, X, "CREATE INSTANCE y REPLICAS (c 'h:7071', d '127.0.0.2:7071')")
    for text, said in (
        ("CREATE INSTANCE z REPLICAS (a '[::1]:7071')", "1:17 replica 'a' has the address of replica 'a' of"),
        ("ALTER INSTANCE y ADD REPLICA e '127.0.0.1:7072'", "1:30 replica 'e' has the address of replica 'b' of"),
        ("CREATE OR REPLACE INSTANCE y REPLICAS (e 'LOCALHOST:7072')", "1:28 replica 'e' has the address of"),
    ):
        with pytest.raises(DefinitionError) as refused:
            do(core, text)
        at = refused.value.position
        assert at is not None
        assert said in f"{at.line}:{at.column} {refused.value}"
        assert "instance 'X'; each replica is another process" in str(refused.value)
    do(core, "ALTER INSTANCE x DROP REPLICA b", "ALTER INSTANCE y ADD REPLICA e '127.0.0.1:7072'")
    do(core, "CREATE OR REPLACE INSTANCE x REPLICAS (b '127.0.0.1:7071')")
    assert replicas(core) == {"b": "127.0.0.1:7071"}


def test_instances_that_share_a_process_already_can_be_mended(core: Core) -> None:
    """Damage: a location of an earlier version, with one address twice, takes no change from then on."""
    do(core, X)
    writing = core.require_writing()
    shared = InstanceItem("y", {"c": "127.0.0.1:7071", "d": "h:1"})
    run_sync(core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(shared)))
    do(core, "ALTER INSTANCE y ADD REPLICA e 'h:2'", "ALTER INSTANCE y DROP REPLICA d")
    do(core, "ALTER INSTANCE y DROP REPLICA c")
    assert core.catalog.one("y", InstanceItem, "instance").replicas == {"e": "h:2"}
