"""Connections, sources and the tables of sources: what they do to an environment, and what is refused.  Over lists."""

from __future__ import annotations

from typing import Any, cast

import pytest

from strandline.controller.asking import reads
from strandline.controller.asking.skip import skip
from strandline.controller.asking.status import status
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import apply
from strandline.controller.defining.creating import create
from strandline.controller.defining.project.files import load
from strandline.controller.holding import Hold
from strandline.controller.language.statements import parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import SourceTable
from strandline.errors import AsOfError, CollectionError, DefinitionError, InvalidUsage, Unavailable
from strandline.frontier import Frontier
from strandline.sources.ingest import Ingestion
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.kinds import Kinds
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_source import Upstream
from strandline.testing.simulation.kernel import run_sync
from strandline.wiring.registry import Readers

DDL = "partition STRING, offset BIGINT, value BIGINT"
COLUMNS = f"({DDL})"
HERE = "CREATE CONNECTION here TO lists (server = one)"
SOURCE = f"CREATE SOURCE s {COLUMNS} FROM list (connection = here)"
BANK = "CREATE SOURCE bank FROM tables (connection = here)"
ACCOUNTS = f"CREATE TABLE accounts {COLUMNS} FROM SOURCE bank (REFERENCE 'a')"
PAYMENTS = f"CREATE TABLE payments {COLUMNS} FROM SOURCE bank (REFERENCE 'p')"


class Place:
    """A location in memory, with two servers to read from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blob, self.consensus, self.clock = MemoryBlob(), MemoryConsensus(), HandClock(1_000)
        self.one, self.two, self.opened = Upstream(), Upstream(), 0
        self.kinds = Kinds({"one": self.one, "two": self.two})
        self.kinds.install(monkeypatch.setitem)

    def open(self) -> Core:
        """Open it as a fresh process would."""
        self.opened += 1
        self.clock.now += 1
        ids = CountingIds(f"p{self.opened}")
        assembly = list_assembly(self.clock, ids, self.blob, self.consensus)
        nothing = cast("Any", None)
        object.__setattr__(assembly, "connectors", Readers(self.clock, assembly.engine, nothing, nothing))
        return run_sync(Core.open(assembly, Config(), Mode.FULL))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a location of its own."""
    return Place(monkeypatch)


def do(core: Core, *texts: str) -> None:
    """Run definitions."""
    for text in texts:
        statement = parse(text)
        run_sync(definitions.drop(core, statement) if text.startswith("DROP") else create(core, cast("Any", statement)))


def read(core: Core, name: str) -> list[int]:
    """Return the values that a collection has now."""
    handle = run_sync(core.readers.of(name))
    time = run_sync(reads.latest(core, [handle]))
    rows = run_sync(core.engine.multiset(run_sync(reads.snapshot(core, handle, time, Hold()))))
    return sorted(row["value"] for row in listed(rows).rows)


def refused(core: Core, text: str) -> str:
    """Return what is said of a definition that must be refused, and where."""
    before = core.catalog
    with pytest.raises(DefinitionError) as caught:
        do(core, text)
    assert core.catalog == before, "a refused definition changes nothing"
    assert caught.value.position is not None, "its author looks for the place"
    return f"{caught.value.position.line}:{caught.value.position.column} {caught.value.message}"


def test_a_source_reads_what_its_connection_says(place: Place) -> None:
    """Damage: a source cannot be defined without saying the server and its secrets again."""
    core = place.open()
    do(core, HERE, SOURCE)
    place.one.produce("0", 1, 2)
    run_sync(core.tick())
    assert read(core, "s") == [1, 2]
    assert core.health.problems() == {}
    run_sync(core.close())
    again = place.open()
    place.one.produce("0", 3)
    run_sync(again.tick())
    assert read(again, "s") == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CREATE CONNECTION c TO list (server = a)", "1:19 there is no kind of connection 'list'; there is "),
        ("CREATE CONNECTION c TO lists (sever = a)", "1:31 connection 'c': option 'sever' is not known"),
        ("CREATE CONNECTION c TO lists", "1:19 connection 'c': option 'server' is missing"),
        (
            "CREATE CONNECTION c TO lists (server = a,\n password = x)",
            "2:2 connection 'c': option password is a secret",
        ),
        ("CREATE CONNECTION here TO lists (server = a)", "1:19 there is a connection 'here' already"),
        (
            f"CREATE SOURCE t {COLUMNS} FROM list (connection = hre)",
            "1:76 option 'connection': there is no connection 'hre'; did you",
        ),
        (
            f"CREATE SOURCE t {COLUMNS} FROM list (connection = here, server = two)",
            "option 'server' is given by connect",
        ),
        (
            f"CREATE SOURCE t {COLUMNS} FROM list (server = o, other_connection = here)",
            "'other_connection' is not known",
        ),
        (f"CREATE SOURCE t {COLUMNS} FROM files (path = x, connection = here)", "not known to files; it uses none"),
        (f"CREATE SOURCE t {COLUMNS} FROM list (connection = s)", "option 'connection': there is no connection 's'"),
        (f"CREATE SOURCE t {COLUMNS} FROM lst (connection = here)", "1:15 there is no connector 'lst'"),
        (
            f"CREATE SOURCE t {COLUMNS} FROM list (connection = here, tpic = x)",
            "'tpic' is not known; did you mean 'topic'",
        ),
        (f"CREATE SOURCE t {COLUMNS} FROM list (connection = here, errors_max = few)", "option 'errors_max' is 'few'"),
        ("CREATE SOURCE t FROM list (connection = here)", "1:15 source 't' needs columns"),
        (
            f"CREATE SOURCE t {COLUMNS} FROM tables (connection = here)",
            "1:15 source 't' has no columns: tables has many",
        ),
        (
            "CREATE SOURCE t FROM tables (connection = here) KEEP HISTORY FOR '1 h'",
            "1:66 KEEP HISTORY FOR is said of each",
        ),
        (
            f"CREATE TABLE t {COLUMNS} FROM SOURCE bnk (REFERENCE 'a')",
            "1:76 there is no source 'bnk'; did you mean 'bank'",
        ),
        (f"CREATE TABLE t {COLUMNS} FROM SOURCE s (REFERENCE 'a')", "source 's' is a collection itself"),
        (f"CREATE TABLE t {COLUMNS} FROM SOURCE bank (REFERENCE 'a')", "table 'accounts' is 'a' of 'bank' already"),
        (f"CREATE TABLE t {COLUMNS} FROM SOURCE bank (REFERENCE 'none')", "upstream has no such table"),
        (
            f"CREATE TABLE t {COLUMNS} FROM SOURCE bank (REFERENCE 'b', topic = x)",
            "option 'topic' is not known; a table",
        ),
        (f"CREATE TABLE bank {COLUMNS} FROM SOURCE bank (REFERENCE 'b')", "1:14 there is a source 'bank' already"),
        (
            f"CREATE TABLE accounts_errors {COLUMNS} FROM SOURCE bank (REFERENCE 'b')",
            "the errors of table 'accounts' are",
        ),
        ("DROP CONNECTION here", "1:17 'here' is used by bank, s; drop that first"),
        ("DROP SOURCE bank", "1:13 'bank' is read by accounts; drop that first"),
        ("DROP SOURCE accounts", "1:13 'accounts' is a table; write DROP TABLE accounts"),
        ("DROP TABLE here", "1:12 'here' is a connection; write DROP CONNECTION here"),
        ("CREATE MATERIALIZED VIEW v AS SELECT b.value AS x FROM bank b", "bank"),
        (
            "CREATE OR REPLACE CONNECTION here TO lists (server = two, password = 'env:P', x = 1)",
            "option 'x' is not known",
        ),
        ("CREATE OR REPLACE CONNECTION s TO lists (server = two)", "1:30 there is a source 's' already"),
    ],
)
def test_a_definition_that_cannot_be_is_refused_where_it_is_wrong(place: Place, text: str, said: str) -> None:
    """Damage: a source is defined that can never run, or its author searches for the mistake."""
    core = place.open()
    do(core, HERE, SOURCE, BANK, ACCOUNTS)
    assert said in refused(core, text)


def test_a_table_that_is_referred_to_in_two_ways_is_one(place: Place) -> None:
    """Damage: of two tables that read one of upstream's, the first gets no changes, and nothing says so."""
    core = place.open()
    unknown = "host = db, user = u, password = 'env:NOT_SET', publication = p"
    do(core, f"CREATE SOURCE pg FROM postgres ({unknown})", "CREATE TABLE t (id INT) FROM SOURCE pg (REFERENCE 't')")
    second = "CREATE TABLE u (id INT) FROM SOURCE pg (REFERENCE 'public.t')"
    assert "table 't' is 't' of 'pg' already" in refused(core, second)


def test_a_source_at_the_address_of_another_is_refused(place: Place) -> None:
    """Damage: it is made, its senders get 404, and rows that an author expects never come."""
    core = place.open()
    do(core, "CREATE SOURCE pay (n BIGINT) FROM WEBHOOK (listen = '127.0.0.1:8090', path = '/pay')")
    second = "CREATE SOURCE more (n BIGINT) FROM WEBHOOK (path = '/more',\n listen = 'localhost:8090')"
    assert refused(core, second) == (
        "2:2 source 'more' cannot be beside source 'pay': it listens at '127.0.0.1:8090'; give option 'listen' another "
        "port"
    )
    do(core, second.replace("8090", "8091"), "DROP SOURCE pay", second.replace("more", "other"))
    assert list(core.catalog.items) == ["more", "other"]


def test_the_tables_of_a_source_are_collections_that_it_feeds(place: Place) -> None:
    """Damage: the tables of one database are at different times, or need a reader each."""
    core = place.open()
    place.one.produce("a", 1)
    place.one.produce("p", 10, 20)
    do(core, HERE, BANK)
    run_sync(core.tick())
    assert core.health.problems() == {}, "a source that feeds nothing yet is no problem"
    do(core, ACCOUNTS, PAYMENTS)
    do(core, "CREATE MATERIALIZED VIEW v AS SELECT p.value AS value FROM payments p")
    time = run_sync(core.tick())
    assert (read(core, "accounts"), read(core, "payments"), read(core, "v")) == ([1], [10, 20], [10, 20])
    assert core.health.problems() == {}
    frontiers = core.require_writing().instance.report().frontiers
    assert {frontiers[name] for name in ("accounts", "payments", "v")} == {Frontier(time + 1)}
    found = run_sync(status(core))
    assert [found["collections"][name]["kind"] for name in ("accounts", "v")] == ["source table", "view"]
    assert "bank" not in found["collections"]
    with pytest.raises(InvalidUsage, match="'accounts' is a table that source 'bank' feeds"):
        core.table("accounts")
    with pytest.raises(DefinitionError, match="source 'bank' is no collection; its tables are: accounts, payments"):
        run_sync(core.readers.of("bank"))


def test_a_table_that_comes_or_goes_leaves_the_others_as_they_are(place: Place) -> None:
    """Damage: to read one more table of a database, all others are read again; or a dropped one is fed for ever."""
    core = place.open()
    place.one.produce("a", 1)
    place.one.produce("p", 10)
    do(core, HERE, BANK, ACCOUNTS)
    run_sync(core.tick())
    shard = core.catalog.collection("accounts").shard
    do(core, PAYMENTS)
    place.one.produce("a", 2)
    run_sync(core.tick())
    assert (read(core, "accounts"), core.health.problems()) == ([1, 2], {})
    do(core, "DROP TABLE accounts")
    place.one.produce("p", 20)
    run_sync(core.tick())
    assert core.health.problems() == {}
    assert core.client.known(shard) is None or shard not in core.catalog.dropped
    do(core, "DROP TABLE payments", "DROP SOURCE bank", "DROP CONNECTION here")
    run_sync(core.tick())
    assert (core.health.problems(), core.catalog.items, core.catalog.dropped) == ({}, {}, ())


def test_what_cannot_be_opened_can_be_dropped(place: Place) -> None:
    """Damage: a table of a server that is gone for ever stays for ever."""
    core = place.open()
    do(core, HERE.replace("one", "three"), BANK, ACCOUNTS, PAYMENTS)
    run_sync(core.tick())
    assert core.health.problems()["bank"] == "there is no server 'three'"
    do(core, "DROP TABLE payments", "DROP TABLE accounts", "DROP SOURCE bank", "DROP CONNECTION here")
    run_sync(core.tick())
    assert (core.health.problems(), core.catalog.items, core.catalog.dropped) == ({}, {}, ())


def test_a_table_that_stands_still_says_that_its_source_does(place: Place) -> None:
    """Damage: an operator looks at a table that is behind, and nothing says why."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS)
    run_sync(core.tick())
    place.one.down = True
    run_sync(core.tick())
    problems = core.health.problems()
    assert problems["bank"] == "the upstream does not answer"
    assert problems["accounts"] == "it waits for its source 'bank', which has a problem"
    place.one.down = False
    run_sync(core.tick())
    assert core.health.problems() == {}


def test_a_table_that_upstream_lacks_is_refused_at_once_if_upstream_answers(place: Place) -> None:
    """Damage: a typing error is accepted, and shows only in the status; or a server that is down refuses it."""
    core = place.open()
    do(core, HERE, BANK)
    place.kinds.missing.add("a")
    with pytest.raises(DefinitionError, match=r"upstream has no table 'a' now \(at line 1, column 14"):
        do(core, ACCOUNTS)
    assert core.catalog.find("accounts") is None
    place.one.down = True
    do(core, ACCOUNTS)
    run_sync(core.tick())
    assert core.health.problems()["accounts"]
    do(core, "DROP TABLE accounts", "DROP SOURCE bank", "DROP CONNECTION here")
    do(core, "CREATE CONNECTION here TO lists (server = one, password = 'env:NOT_SET_HERE')", BANK, ACCOUNTS)


def test_a_table_that_upstream_lacks_stands_still_alone(place: Place) -> None:
    """Damage: one table that cannot be read stops every table of its source, or waits for a restart."""
    core = place.open()
    place.one.produce("a", 1)
    place.one.produce("p", 2)
    do(core, HERE, BANK, ACCOUNTS)
    place.one.down = True
    place.kinds.missing.add("p")
    do(core, PAYMENTS)
    place.one.down = False
    for value in (3, 4):
        place.one.produce("a", value)
        run_sync(core.tick())
        place.clock.now += 1_000
    assert read(core, "accounts") == [1, 3, 4]
    assert core.health.problems()["payments"] == "upstream has no table 'p' now"
    assert "accounts" not in core.health.problems()
    place.kinds.missing.clear()
    run_sync(core.tick())
    assert (read(core, "payments"), core.health.problems()) == ([2], {})


def test_what_died_between_defining_a_table_and_feeding_it_is_fed_by_the_next_tick(place: Place) -> None:
    """Damage: a crash after CREATE TABLE leaves a table that no process ever feeds."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS)
    run_sync(core.tick())
    place.one.produce("p", 10)
    late = SourceTable("late", core.catalog.collection("accounts").columns, "late-shard", "bank", "p")
    run_sync(core.catalogs.change(core.require_writing().epoch, lambda catalog: catalog.with_item(late)))
    run_sync(core.tick())
    assert core.health.problems() == {}
    assert read(core, "late") == [10]
    assert core.require_writing().retention.holds(late)


def test_a_connection_that_is_replaced_is_used_at_once(place: Place) -> None:
    """Damage: a server moved, and every source over it has to be dropped with all that it holds."""
    core = place.open()
    do(core, HERE, SOURCE, BANK, ACCOUNTS)
    place.one.produce("0", 1)
    place.two.produce("0", 1)
    run_sync(core.tick())
    place.two.produce("0", 2)
    place.two.produce("a", 7)
    do(core, "CREATE OR REPLACE CONNECTION here TO lists (server = two)")
    run_sync(core.tick())
    assert (read(core, "s"), read(core, "accounts"), core.health.problems()) == ([1, 2, 7], [7], {})


def test_a_connection_that_is_replaced_by_its_like_is_opened_anew(place: Place) -> None:
    """Damage: a password is mended in its file, and nothing but a restart reads it again."""
    core = place.open()
    do(core, HERE, SOURCE)
    run_sync(core.tick())
    before = len(place.kinds.opened)
    do(core, HERE.replace("CREATE", "CREATE OR REPLACE"))
    place.one.produce("0", 1)
    run_sync(core.tick())
    assert (read(core, "s"), len(place.kinds.opened), core.health.problems()) == ([1], before + 1, {})


def test_a_source_that_cannot_be_closed_keeps_no_other_one_from_the_new_connection(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the sources that come after it read on with the old password, and no problem says so."""
    core = place.open()
    do(core, HERE, SOURCE, SOURCE.replace("SOURCE s", "SOURCE t"))
    run_sync(core.tick())
    ended: list[Ingestion] = []

    async def close(ingestion: Ingestion) -> None:
        ended.append(ingestion)
        raise Unavailable("upstream does not hear that it may let go")

    monkeypatch.setattr(Ingestion, "close", close)
    place.two.produce("0", 1)
    do(core, "CREATE OR REPLACE CONNECTION here TO lists (server = two)")
    assert len(ended) == 2
    run_sync(core.tick())
    assert (read(core, "s"), read(core, "t"), core.health.problems()) == ([1], [1], {})


def test_errors_of_a_table_are_its_own_and_can_be_dismissed(place: Place) -> None:
    """Damage: a message of one table that cannot be decoded keeps all tables from being read."""
    core = place.open()
    do(core, HERE, BANK, ACCOUNTS, PAYMENTS)
    do(core, f"CREATE TABLE lenient {COLUMNS} FROM SOURCE bank (REFERENCE 'l', on_error = continue)")
    place.one.produce("a", 1, None)
    place.one.produce("p", 10)
    place.one.produce("l", 5, None)
    run_sync(core.tick())
    assert (read(core, "payments"), read(core, "lenient")) == ([10], [5])
    with pytest.raises(CollectionError, match="'accounts' has 1 error"):
        read(core, "accounts")
    assert reads.relations_of(core, "SELECT * FROM accounts_errors") == ["accounts_errors"]
    found = run_sync(skip(core, "accounts", None, apply=True))
    assert found["dismissed_at"] is not None
    run_sync(core.tick())
    assert read(core, "accounts") == [1]
    with pytest.raises(DefinitionError, match="source 'bank' is no collection; its tables are: accounts"):
        run_sync(skip(core, "bank", None, apply=False))


def test_a_source_stands_still_with_more_errors_than_it_may_hold(place: Place) -> None:
    """Damage: a producer changes its format, and the error half fills the disk overnight."""
    core = place.open()
    do(core, HERE, f"CREATE SOURCE s {COLUMNS} FROM list (connection = here, errors_max = 1, on_error = continue)")
    place.one.produce("0", 1, None)
    run_sync(core.tick())
    assert (read(core, "s"), core.health.problems()) == ([1], {})
    place.one.produce("0", None, 2)
    run_sync(core.tick())
    run_sync(core.tick())
    assert (
        "it holds 2 errors and errors_max is 1, so nothing more is read; look at s_errors"
        in core.health.problems()["s"]
    )
    place.one.produce("0", 3)
    upper = core.require_writing().instance.report().frontiers["s"]
    run_sync(core.tick())
    assert core.require_writing().instance.report().frontiers["s"] == upper, "it reads nothing more"
    run_sync(skip(core, "s", None, apply=True))
    run_sync(core.tick())
    assert (read(core, "s"), core.health.problems()) == ([1, 2, 3], {})


def test_a_budget_and_a_connection_may_change_in_a_project_and_nothing_else(place: Place, tmp_path) -> None:
    """Damage: a source that stands still for its errors can only be dropped; or it is defined anew unasked."""
    core = place.open()
    files = {
        "connections/here.yml": "to: lists\noptions: {server: one}",
        "sources/s.yml": f"from: list\nconnection: here\ncolumns: {DDL}\noptions: {{errors_max: 0, topic: t}}",
        "sources/bank.sql": f"{BANK}; {ACCOUNTS}",
    }

    def applied(**changed: str) -> tuple[str, ...]:
        (tmp_path / "strandline.yml").write_text("location: data")
        for name, text in {**files, **{name.replace("__", "/"): text for name, text in changed.items()}}.items():
            path = tmp_path / name.replace("_yml", ".yml").replace("_sql", ".sql")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return run_sync(apply(core, load(tmp_path))).created

    assert applied() == ("here", "bank", "s", "accounts")
    assert applied() == ()
    place.one.produce("0", None)
    place.two.produce("0", None)
    run_sync(core.tick())
    run_sync(core.tick())
    assert "errors_max is 0" in core.health.problems()["s"]
    raised = files["sources/s.yml"].replace("errors_max: 0", "errors_max: 1")
    assert applied(sources__s_yml=raised, connections__here_yml="to: lists\noptions: {server: two}") == ()
    run_sync(core.tick())
    assert (core.health.problems(), place.kinds.opened[-1].upstream) == ({}, place.two)  # type: ignore[attr-defined]
    with pytest.raises(
        DefinitionError, match=r"sources/s.yml: 's': it was created with other options: topic 't' → 'u'"
    ):
        applied(sources__s_yml=raised.replace("topic: t", "topic: u"))
    with pytest.raises(
        DefinitionError, match=r"sources/bank.sql: 'accounts': it was created with the reference 'a' of"
    ):
        applied(sources__s_yml=raised, sources__bank_sql=f"{BANK}; {ACCOUNTS.replace(chr(39) + 'a', chr(39) + 'b')}")


def test_a_source_that_is_opened_later_than_its_view_is_awaited(place: Place) -> None:
    """Damage: a view over a table that was never fed is complete, and empty."""
    core = place.open()
    place.one.down = True
    do(core, HERE, BANK, ACCOUNTS, "CREATE MATERIALIZED VIEW v AS SELECT a.value AS value FROM accounts a")
    run_sync(core.tick())
    with pytest.raises(AsOfError):
        read(core, "v")


def test_what_is_included_is_a_column_whether_it_is_named_or_not(place: Place) -> None:
    """Damage: INCLUDE adds nothing that can be read; or a column that the author placed comes twice."""
    core = place.open()
    do(core, HERE, "CREATE SOURCE i (a STRING) FROM list (connection = here) INCLUDE OFFSET AS at")
    do(core, "CREATE SOURCE j (at BIGINT, a STRING) FROM list (connection = here) INCLUDE OFFSET AS at")
    assert core.catalog.collection("i").columns == (("a", "string"), ("at", "bigint"))
    assert core.catalog.collection("j").columns == (("at", "bigint"), ("a", "string"))
