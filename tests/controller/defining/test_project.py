"""A project says what an environment is, in files; what is not understood is refused by name and place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.controller.defining.changing.order import in_order
from strandline.controller.defining.project.files import load
from strandline.controller.defining.project.settings import Defined
from strandline.controller.language.clauses import Bind
from strandline.controller.language.instances import CreateInstance
from strandline.controller.language.statements import CreateMaterialization, CreateSource, CreateView
from strandline.controller.location.config import Config
from strandline.errors import ConfigError, DefinitionError, Position


def write(root: Path, **files: str) -> Path:
    """Write files whose names have ``__`` for the slash and ``_`` before the suffix."""
    for name, text in {"strandline_yml": "location: data\n", **files}.items():
        directory, _, last = name.rpartition("__")
        stem, _, suffix = last.rpartition("_")
        path = root / directory / f"{stem}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def statements(root: Path) -> dict[str, object]:
    """Return the project's statements by name."""
    return {defined.statement.name: defined.statement for defined in load(root).definitions}


def test_a_directory_without_settings_is_no_project(tmp_path):
    """Every command would start with an error about something else."""
    with pytest.raises(ConfigError, match="strandline.yml is missing; make one with `strandline init`"):
        load(tmp_path)


def test_files_of_an_editor_of_windows_are_read(tmp_path):
    """A byte-order mark is taken for a part of the first word, so the project has no statement and no location."""
    root = write(tmp_path, strandline_yml="location: data\n", tables__t_sql="CREATE TABLE t (k INT)", views__v_sql="x")
    for file, text in (
        ("strandline.yml", "location: data\r\ntick_ms: 5000"),
        ("tables/t.sql", "CREATE TABLE t (\r\n  k INT\r\n)"),
        ("views/v.sql", "CREATE MATERIALIZED VIEW v AS\r\nSELECT k -- a comment\r\nFROM t"),
    ):
        (root / file).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list(statements(root)) == ["t", "v"]
    assert load(root).config["tick_ms"] == 5_000


def test_settings_are_read_and_paths_are_seen_from_the_project(tmp_path):
    """A project that is run from another directory would keep its collections there."""
    settings = (
        "location: data\ndeployment: d\ncache: cached\nkeep_history: 2 days\nkafka_jars: jars\n"
        "storage: {Region: r}\nspark: {spark.sql.ansi.enabled: true}\nfunctions: {slug: text.py:slug, f: firm.text:f}\n"
        "replica_token: file:secrets/token"
    )
    project = load(write(tmp_path, strandline_yml=settings))
    assert project.location == (tmp_path / "data").as_uri()
    assert project.config == {
        "deployment": "d",
        "reentrant": True,
        "tick_ms": 1000,
        "keep_history": "2 days",
        "cache": str(tmp_path / "cached"),
        "kafka_jars": str(tmp_path / "jars"),
        "functions": {"slug": f"{tmp_path / 'text.py'}:slug", "f": "firm.text:f"},
        "replica_token": f"file:{tmp_path / 'secrets/token'}",
        "cache_bytes": 1 << 28,
        "storage": {"region": "r"},
        "spark": {"spark.sql.ansi.enabled": "true"},
    }


def test_a_project_can_say_whatever_an_environment_can_be_configured_with(tmp_path):
    """Damage: an operator copies a setting of the docs into the project, and `run` refuses it as unknown."""
    said = {
        "lanes": 3,
        "executors_wait_s": 8,
        "executors_end_s": 60,
        "query_limit_s": 90,
        "replica_token": "file:replicas",
        "replica_certificate": "tls/replica.pem",
        "replica_key": "tls/replica.key",
        "replica_authority": "/etc/authority.pem",
        "serve_at": "127.0.0.1:8815",
        "serve_token": "env:TOKEN",
        "serve_certificate": "tls/chain.pem",
        "serve_key": "tls/key.pem",
        "console_at": "127.0.0.1:9464",
        "traces": {"endpoint": "http://localhost:4318", "headers": "file:otlp"},
    }
    (tmp_path / "strandline.yml").write_text(json.dumps({"location": "data", **said}))
    config = load(tmp_path).config
    assert {*Config.__struct_fields__} - {*config} == {"take_over"}, "which `run` has an option for"
    at = Config(**config)
    assert (at.lanes, at.serve_at, at.serve_token) == (3, "127.0.0.1:8815", "env:TOKEN")
    assert at.replica_token == f"file:{tmp_path}/replicas"
    assert (at.serve_key, at.replica_key) == (f"{tmp_path}/tls/key.pem", f"{tmp_path}/tls/replica.key")
    assert at.replica_authority == "/etc/authority.pem"
    assert at.console_at == "127.0.0.1:9464"
    assert at.traces == {"endpoint": "http://localhost:4318", "headers": f"file:{tmp_path}/otlp"}


def test_a_setting_of_spark_keeps_its_capitals(tmp_path):
    """Spark would be given a key that it does not know, and say nothing."""
    project = load(
        write(tmp_path, strandline_yml="location: data\nspark: {spark.driver.extraJavaOptions: -XX:+UseSerialGC}")
    )
    assert project.config["spark"] == {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("location: file://data/strand", "third slash"),
        ("location: data\nlocaton: x", "localton|localtion|`localton`|`locaton`"),
        ("deployment: d", "missing required field `location`"),
        ("location: data\nkeep_history: a while", "keep_history: 'a while' is no interval"),
        ("location: data\ntick_ms: soon", r"Expected `int`, got `str` - at `\$.tick_ms`"),
        ("location: [", r"this is not YAML: .* \(at line 1, column"),
        ("location: data\nlocation: other", r"key 'location' is there twice \(at line 2, column 1\)"),
        ("location: data\nendpoints: {w: {path: x}}", "endpoint 'w' names no driver"),
        ("location: data\ninstances: {x: {replica: {}}}", "unknown field `replica`"),
        ("location: data\ninstances: {x: {replicas: {a: 7071}}}", "Expected `str`, got `int`"),
        ("location: data\ninstances: {x: {replicas: {a: h}}}", "instance 'x': 'h' is no address of a replica"),
        (
            "location: data\ninstances: {x: {replicas: {a: 'h:1', A: 'h:2'}}}",
            "instance 'x': replica 'a' is named twice",
        ),
        ("location: data\ninstances: {x: {replicas: {a: 'h:1', b: 'h:1'}}}", "'b' has the address of 'a'"),
        (
            "location: data\ninstances: {x: {replicas: {a: 'localhost:1'}}, y: {replicas: {b: '127.0.0.1:1'}}}",
            "replica 'b' has the address of replica 'a' of instance 'x'",
        ),
    ],
)
def test_wrong_settings_are_refused_by_name(tmp_path, text, said):
    """A misspelt setting would silently not be set."""
    with pytest.raises(ConfigError, match=f"strandline.yml: .*({said})"):
        load(write(tmp_path, strandline_yml=text))


def test_an_instance_is_the_same_in_sql_and_in_the_settings(tmp_path):
    """An author who moves an instance from one form to the other would have its replicas fenced out."""
    settings = "location: data\ninstances: {x: {replicas: {a: 'localhost:7071', B: '[::1]:7072'}}}"
    sql = "CREATE INSTANCE x REPLICAS (a 'localhost:7071', B '[::1]:7072')"
    found = statements(write(tmp_path / "sql", instances__x_sql=sql))
    assert found == statements(write(tmp_path / "yml", strandline_yml=settings))
    assert found == {"x": CreateInstance("x", {"a": "localhost:7071", "b": "[::1]:7072"})}
    with pytest.raises(DefinitionError, match=r"instances/x.sql: 'x' is defined in strandline.yml too"):
        load(write(tmp_path / "both", strandline_yml=settings, instances__x_sql=sql))


def test_the_instance_of_a_source_and_of_a_materialization_is_the_same_in_sql_and_in_yaml(tmp_path):
    """An author who moves a definition from one form to the other would be told that it changed."""
    sql = statements(
        write(
            tmp_path / "sql",
            sources__s_sql="CREATE SOURCE s IN INSTANCE x (a INT) FROM kafka (topic = t) KEEP HISTORY FOR '1 h'",
            sources__bank_sql="CREATE SOURCE bank IN INSTANCE X FROM postgres",
            materializations__m_sql="CREATE MATERIALIZATION m IN INSTANCE x INTO memory AS s",
        )
    )
    yml = statements(
        write(
            tmp_path / "yml",
            sources__s_yml="from: kafka\ncolumns: a INT\noptions: {topic: t}\ninstance: x\nkeep_history: 1 h",
            sources__bank_yml="from: postgres\ninstance: X",
            materializations__m_yml="into: memory\ncollections: [s]\ninstance: x",
        )
    )
    assert sql == yml
    assert {name: each.instance for name, each in yml.items()} == {"s": "x", "bank": "X", "m": "x"}


def test_a_materialization_of_an_endpoint_by_name_keeps_its_instance(tmp_path):
    """An author who gives an endpoint a name would have it written by the process of the environment."""
    settings = "location: data\nendpoints: {w: {driver: duckdb, path: /w.duckdb}}"
    text = "CREATE MATERIALIZATION m IN INSTANCE x INTO w AS v"
    found = statements(write(tmp_path, strandline_yml=settings, materializations__m_sql=text))["m"]
    assert (found.endpoint, found.instance) == ("duckdb", "x")


def test_the_token_of_replicas_is_a_reference_and_is_not_shown():
    """A token that stands in a configuration is shown wherever the configuration is."""
    assert Config(replica_token="env:TOKEN").replica_token == "env:TOKEN"
    with pytest.raises(ConfigError, match="replica_token is a secret: say where it is") as refused:
        Config(replica_token="canary-4711")
    assert "canary" not in str(refused.value)


def test_the_location_may_be_a_reference(tmp_path, monkeypatch):
    """A location that differs from machine to machine would have to be written into the project."""
    root = write(tmp_path, strandline_yml="location: env:STRANDLINE_TEST_PLACE")
    with pytest.raises(ConfigError, match="'STRANDLINE_TEST_PLACE', which is not set"):
        load(root)
    monkeypatch.setenv("STRANDLINE_TEST_PLACE", "memory://")
    assert load(root).location == "memory://"


def test_a_source_may_be_written_in_sql_or_in_yaml(tmp_path):
    """The same definition would mean two things."""
    sql = "CREATE SOURCE a (`k` INT, `v` STRING) USING files OPTIONS (path 'in/*.csv', header 'true', settle '0')"
    yml = "columns: {k: INT, v: STRING}\noptions: {path: in/*.csv, header: true, settle: 0}"
    found = statements(write(tmp_path, sources__a_sql=sql, sources__b_yml=yml))
    options = {"path": str(tmp_path / "in/*.csv"), "header": "true", "settle": "0"}
    assert found["a"] == CreateSource("a", "`k` INT, `v` STRING", "files", options)
    assert found["b"] == CreateSource("b", "`k` INT, `v` STRING", "files", options)


def test_a_source_its_tables_and_its_connection_are_the_same_in_sql_and_in_yaml(tmp_path):
    """An author who moves a definition from one form to the other would be told that it changed."""
    sql = statements(
        write(
            tmp_path / "sql",
            connections__c_sql="CREATE CONNECTION c TO kafka (brokers = 'b:9092', password = 'file:pw')",
            sources__s_sql="CREATE SOURCE s (a INT, b STRING) FROM KAFKA (connection = c, topic = t) KEY (a) "
            "KEY FORMAT text FORMAT json INCLUDE offset, KEY AS k ENVELOPE UPSERT;\n"
            "CREATE SOURCE bank FROM POSTGRES (connection = pg)",
            tables__accounts_sql="CREATE TABLE accounts (a INT) FROM SOURCE bank (REFERENCE 'public.a', errors_max 9)",
        )
    )
    yml = statements(
        write(
            tmp_path / "yml",
            connections__c_yml="to: Kafka\noptions: {brokers: 'b:9092', password: 'file:pw'}",
            sources__s_yml="from: KAFKA\nconnection: c\ncolumns: a INT, b STRING\noptions: {topic: t}\nkey: [a]\n"
            "key_format: text\nformat: JSON\ninclude: {offset: offset, key: k}\nenvelope: upsert",
            sources__bank_yml="from: postgres\noptions: {connection: pg}",
            tables__accounts_yml="source: bank\nreference: public.a\ncolumns: a INT\noptions: {errors_max: 9}",
        )
    )
    secrets = [file.pop("c") for file in (sql, yml)]
    assert [each.options["password"] for each in secrets] == [f"file:{tmp_path / n / 'pw'}" for n in ("sql", "yml")]
    assert sql == yml


def test_a_materialization_takes_its_driver_and_options_from_an_endpoint(tmp_path):
    """Every materialization would repeat where its endpoint is, and one of them would be forgotten when it moves."""
    settings = "location: data\nendpoints: {warehouse: {driver: duckdb, path: out/w.duckdb}}"
    yml = "into: warehouse\ncollections:\n- v\n- {collection: w, table: t, key: [a, b]}"
    sql = "CREATE MATERIALIZATION n INTO duckdb OPTIONS (path '/there.duckdb') AS v"
    root = write(tmp_path, strandline_yml=settings, materializations__m_yml=yml, materializations__n_sql=sql)
    path = {"path": str(tmp_path / "out/w.duckdb")}
    assert statements(root) == {
        "m": CreateMaterialization("m", "duckdb", path, (Bind("v", "v", ()), Bind("w", "t", ("a", "b")))),
        "n": CreateMaterialization("n", "duckdb", {"path": "/there.duckdb"}, (Bind("v", "v", ()),)),
    }


def test_references_stay_references_and_their_files_are_seen_from_the_project(tmp_path):
    """A secret's value would be stored in the catalog."""
    settings = "location: data\nendpoints: {w: {driver: duckdb, path: env:SOMEWHERE, password: file:secrets/p}}"
    root = write(tmp_path, strandline_yml=settings, materializations__m_yml="into: w\ncollections: [v]")
    options = statements(root)["m"].options
    assert options == {"path": "env:SOMEWHERE", "password": f"file:{tmp_path}/secrets/p"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"sources__a_yml": "columns: a INT\noption: {}"}, "sources/a.yml: .*`option`"),
        ({"sources__a_yml": "include: [size]"}, "sources/a.yml: include: there is no 'size'; there is key, timestamp"),
        ({"sources__a_yml": "options: {key: a}\nkey: [a]"}, "sources/a.yml: option 'key' is given twice"),
        ({"sources__a_yml": "from: kafka\nusing: kafka"}, "sources/a.yml: `from` and `using` name one connector both"),
        ({"tables__a_yml": "source: s\nreference: r"}, "tables/a.yml: columns is missing"),
        ({"tables__a_yml": "source: s\nrefrence: r"}, "tables/a.yml: .*did you mean `reference`"),
        ({"sources__a_py": ""}, r"sources/a.py: sources/ may hold only .sql and .yml files"),
        ({"instances__a_yml": ""}, r"instances/a.yml: instances/ may hold only .sql files"),
        ({"instances__a_sql": "CREATE TABLE t (a INT)"}, "instances/a.sql: 't' belongs in tables/"),
        ({"views__a_sql": "CREATE INSTANCE x REPLICAS ()"}, "views/a.sql: 'x' belongs in instances/"),
        ({"tables__a_yml": "source: s\nreference: r\ncolumns: a INT\ninstance: x"}, "unknown field `instance`"),
        (
            {"instances__a_sql": "ALTER INSTANCE x DROP REPLICA a"},
            "instances/a.sql: a project's files hold definitions",
        ),
        ({"views__a_yml": ""}, r"views/a.yml: views/ may hold only .sql files"),
        ({"views__a_sql": "CREATE TABLE t (a INT)"}, "views/a.sql: 't' belongs in tables/"),
        ({"tables__a_sql": "DROP TABLE t"}, "tables/a.sql: a project's files hold definitions"),
        ({"tables__a_sql": "CREATE TABLE t (a INT); CREATE TABLE T (b INT)"}, "'t' is defined in tables/a.sql too"),
        ({"materializations__m_yml": "into: duckdb\ncollections: []"}, "materializations/m.yml: collections is empty"),
    ],
)
def test_a_file_that_cannot_be_understood_is_named(tmp_path, files, said):
    """Damage: its author has to search all files."""
    with pytest.raises(DefinitionError, match=said):
        load(write(tmp_path, **files))


def test_a_syntax_error_has_the_line_and_column_of_the_file(tmp_path):
    """Positions within one statement of many would point at the wrong line."""
    with pytest.raises(DefinitionError) as caught:
        load(write(tmp_path, tables__a_sql="CREATE TABLE t (a INT);\n\n  CREATE TABEL u (a INT)"))
    assert caught.value.position == Position(3, 10)
    assert str(caught.value).startswith("tables/a.sql: expected TABLE, SOURCE")


def test_an_option_that_the_endpoint_has_is_refused(tmp_path):
    """Which of two paths is meant would depend on the order in which they are merged."""
    settings = "location: data\nendpoints: {w: {driver: duckdb, path: a}}"
    root = write(
        tmp_path, strandline_yml=settings, materializations__m_yml="into: w\ncollections: [v]\noptions: {path: b}"
    )
    with pytest.raises(DefinitionError, match="m.yml: .*endpoint 'w' has option 'path' already"):
        load(root)


def view(name: str, query: str) -> Defined:
    """Return a view as a project would define it."""
    return Defined(f"views/{name}.sql", CreateView(name, query, Position(1, 1)))


def test_views_come_after_the_views_that_they_read_whatever_the_files_are_called():
    """A project could not be created unless its files were named in order."""
    a, b = view("a", "SELECT * FROM b JOIN t"), view("b", "WITH a AS (SELECT 1) SELECT * FROM C")
    c = view("c", "SELECT a FROM t")
    names = [each.statement.name for each in in_order([a, b, c])]
    assert names.index("c") < names.index("b") < names.index("a")


def test_views_in_a_circle_are_named():
    """The first of them would be refused for reading what is not there."""
    with pytest.raises(DefinitionError, match=r"in a circle: '(a' reads 'b' reads 'a|b' reads 'a' reads 'b)'"):
        in_order([view("a", "SELECT * FROM b"), view("b", "SELECT * FROM a")])


def test_an_archive_is_seen_from_the_project(tmp_path):
    """Damage: files that were read are moved into a directory of wherever the command was typed."""
    source = "from: files\ncolumns: a INT\noptions: {path: in, on_durable: archive, archive: done}"
    options = statements(write(tmp_path, sources__s_yml=source))["s"].options
    assert (options["path"], options["archive"]) == (str(tmp_path / "in"), str(tmp_path / "done"))
    source = source.replace("in,", "s3://b/in,").replace("done", "s3://b/done")
    assert statements(write(tmp_path, sources__s_yml=source))["s"].options["archive"] == "s3://b/done"
