"""A client with the token tries to read what is the server's: each row of THREAT_MODEL.md that says it may not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest
from pyspark.sql import SparkSession

from strandline.serving import Serving

pytestmark = pytest.mark.spark

IN_ENVIRONMENT = "SPARK_SUBMIT_OPTS"
"""A variable that each JVM of the tests begins with."""
FILE = "the third line of a file of the server"
GETENV = f"'java.lang.System', 'getenv', '{IN_ENVIRONMENT}'"
XSD = "map('rowValidationXSDPath', '{file}')"
ENTITY = '<!DOCTYPE a [<!ENTITY x SYSTEM "file://{file}">]><a><b>&x;</b></a>'

QUERIES = {
    "java_method": f"SELECT java_method({GETENV})",
    "reflect": f"SELECT reflect({GETENV})",
    "try_reflect": f"SELECT try_reflect({GETENV})",
    "qualified": f"SELECT system.builtin.java_method({GETENV})",
    "in quotes": f"SELECT `REFLECT`({GETENV})",
    "name by a text": f"SELECT IDENTIFIER('refl' || 'ect')({GETENV})",
    "in WITH": f"WITH a AS (SELECT reflect({GETENV}) AS x) SELECT * FROM a",
    "in a subquery": f"SELECT * FROM VALUES (1) AS t(a) WHERE (SELECT reflect({GETENV})) IS NOT NULL",
    "in a schema": f"SELECT from_json('1', reflect({GETENV}))",
    "in a LIMIT": f"SELECT 1 LIMIT reflect({GETENV})",
    "as a relation": f"SELECT * FROM IDENTIFIER(java_method({GETENV}))",
    "in a lambda": f"SELECT transform(array(1), x -> reflect({GETENV}))",
    "piped": f"FROM VALUES (1) AS t(a) |> SELECT reflect({GETENV})",
    "as a window": f"SELECT max(reflect({GETENV})) OVER ()",
    "system property": "SELECT java_method('java.lang.System', 'getProperty', 'java.home')",
    "a program": "SELECT TRANSFORM(1) USING 'env' AS (x STRING)",
    "a program of rows": "SELECT * FROM (FROM (SELECT 1 AS a) MAP a USING 'env' AS (x STRING))",
    "a program that reduces": "SELECT * FROM (FROM (SELECT 1 AS a) REDUCE a USING 'env' AS (x STRING))",
    "a program in WITH": "WITH p AS (SELECT TRANSFORM(1) USING 'cat {file}' AS (x STRING)) SELECT * FROM p",
    "a program in EXISTS": "SELECT 1 WHERE EXISTS (SELECT TRANSFORM(1) USING 'cat {file}' AS (x STRING))",
    "a program in LATERAL": (
        "SELECT * FROM sales, LATERAL (SELECT TRANSFORM(1) USING 'cat {file}' AS (x STRING)) AS p"
    ),
    "a program in capitals of another alphabet": "ſELECT TRANſFORM(1) UſING 'env' Aſ (x STRING)",
    "a text file": "SELECT * FROM text.`{file}`",
    "a CSV file": "SELECT * FROM csv.`file://{file}`",
    "a JSON file": "SELECT * FROM json.`{file}`",
    "bytes of a file": "SELECT * FROM binaryFile.`{file}`",
    "a file of our own format": "SELECT * FROM strandline.`{file}`",
    "a file by a text": "SELECT * FROM IDENTIFIER('text.`{file}`')",
    "a schema of XML": f"SELECT from_xml('<a/>', 'b INT', {XSD})",
    "a schema of XML, put together": "SELECT from_xml('<a/>', 'b INT', map('rowValidation' || 'XSDPath', '{file}'))",
    "a schema of XML in a constant": f"SELECT from_json('1', from_xml('<a/>', 'b STRING', {XSD}).b)",
    "a schema of inferred XML": f"SELECT schema_of_xml('<a/>', {XSD})",
    "an entity of XML": f"SELECT from_xml('{ENTITY}', 'b STRING')",
    "an entity of XPath": f"SELECT xpath_string('{ENTITY}', 'a/b')",
    "a document type of XPath": 'SELECT xpath_string(\'<!DOCTYPE a SYSTEM "file://{file}"><a/>\', \'a\')',
    "a document type in a network": 'SELECT xpath_string(\'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x"><a/>\', \'a\')',
    "a document of XPath": "SELECT xpath_string('<a/>', 'document(\"file://{file}\")')",
    "Java of XPath": f"SELECT xpath_string('<a/>', 'java:java.lang.System.getenv(\"{IN_ENVIRONMENT}\")')",
    "a schema of Avro": "SELECT from_avro(X'00', '\"int\"', map('avroSchemaUrl', '{file}'))",
    "a descriptor of Protobuf": "SELECT from_protobuf(X'00', 'A', '{file}')",
    "logs of workers": "SELECT * FROM python_worker_logs()",
    "where parts are": "SELECT input_file_name() FROM sales",
    "metadata of files": "SELECT _metadata.file_path FROM sales",
    "the account": "SELECT current_user()",
    "the account as a word": "SELECT current_user",
    "the account in a session": "SELECT session_user()",
    "the account by a text": "SELECT * FROM IDENTIFIER(current_user())",
    "a view of all sessions": "SELECT * FROM global_temp.sales",
    "a view of all sessions, in a CTE's place": "WITH sales AS (SELECT 1 AS a) SELECT * FROM global_temp.sales",
    "a table of the application": "SELECT * FROM default.sales",
    "a table of its catalog": "SELECT * FROM spark_catalog.default.secrets",
    "a table of its catalog, piped": "TABLE default.secrets |> SELECT *",
    "a view of its catalog": "SELECT * FROM default.kept",
    "a table by a text": "SELECT * FROM IDENTIFIER('default.' || 'secrets')",
    "two queries": "SELECT 1; SELECT * FROM text.`{file}`",
    "out of the parentheses": "SELECT 1) UNION ALL (SELECT reflect(" + GETENV + ")",
}  # fmt: skip
"""Queries, by what they try."""

BY_ROWS = frozenset(
    {
        *("a document of XPath", "a document type of XPath", "a document type in a network", "Java of XPath"),
        *("an entity of XML", "an entity of XPath"),
    }
)
"""What fails, or has no effect, once there are rows; without rows Spark looks into no text."""

STATEMENTS = {
    "SET": "SET spark.app.name",
    "all settings": "SET -v",
    "open variables": "SET spark.sql.variable.substitute = true",
    "open files": "SET spark.sql.runSQLOnFiles = true",
    "forget": "RESET",
    "a jar": "ADD JAR '{file}'",
    "a file for executors": "ADD FILE '{file}'",
    "files of executors": "LIST FILES",
    "a function": "CREATE FUNCTION f AS 'java.lang.System'",
    "a temporary function": "CREATE TEMPORARY FUNCTION f AS 'java.lang.System' USING JAR '{file}'",
    "a function in SQL": "CREATE TEMPORARY FUNCTION f() RETURNS STRING RETURN reflect(" + GETENV + ")",
    "a relation over a file": "CREATE TEMPORARY VIEW f USING text OPTIONS (path '{file}')",
    "a table over a file": "CREATE TABLE f USING text LOCATION '{file}'",
    "a table from a file": "LOAD DATA LOCAL INPATH '{file}' INTO TABLE sales",
    "rows to a file": "INSERT OVERWRITE LOCAL DIRECTORY '{file}.d' USING csv SELECT 1",
    "a variable": "DECLARE VARIABLE x STRING DEFAULT reflect(" + GETENV + ")",
    "a variable again": "SET VAR x = 1",
    "text as a statement": "EXECUTE IMMEDIATE 'SELECT reflect(''java.lang.System'', ''getenv'')'",
    "a script": "BEGIN SELECT 1; END",
    "a plan": "EXPLAIN EXTENDED SELECT 1",
    "what is cached": "CACHE TABLE sales",
    "another catalog": "USE spark_catalog.default",
    "a procedure": "CALL system.x()",
    "databases": "SHOW DATABASES",
    "the settings of a table": "SHOW TBLPROPERTIES sales",
    "functions": "SHOW FUNCTIONS",
    "a view that calls": f"CREATE MATERIALIZED VIEW f AS SELECT java_method({GETENV}) AS x FROM sales",
    "a view that runs a program": "CREATE MATERIALIZED VIEW f AS SELECT TRANSFORM(n) USING 'env' AS (x STRING)",
    "a view over a file": "CREATE MATERIALIZED VIEW f AS SELECT * FROM text.`{file}`",
    "a view over a view of all sessions": "CREATE MATERIALIZED VIEW f AS SELECT * FROM global_temp.sales",
    "a view of the account": "CREATE MATERIALIZED VIEW f AS SELECT current_user AS x FROM sales",
    "a view with a schema": f"CREATE MATERIALIZED VIEW f AS SELECT from_xml(city, 'b INT', {XSD}) AS x FROM sales",
    "rows that a call makes": f"INSERT INTO sales SELECT reflect({GETENV}), 1",
    "rows that a program makes": "INSERT INTO sales SELECT TRANSFORM(1, 2) USING 'cat {file}' AS (a STRING, n INT)",
    "a value that a call makes": f"INSERT INTO sales VALUES (reflect({GETENV}), 1)",
    "a table of rows": "CREATE TABLE f AS SELECT TRANSFORM(1) USING 'env' AS (x STRING)",
    "an update by a call": f"UPDATE sales SET city = reflect({GETENV})",
    "an update by a program": (
        "UPDATE sales SET city = (SELECT max(x) FROM (SELECT TRANSFORM(1) USING 'cat {file}' AS (x STRING)))"
    ),
    "an update by a schema": f"UPDATE sales SET city = from_xml('<a/>', 'b STRING', {XSD}).b",
    "an update by a name": "UPDATE sales SET city = IDENTIFIER('refl' || 'ect')(" + GETENV + ")",
    "an update by the account": "UPDATE sales SET city = current_user",
    "an update from all sessions": "UPDATE sales SET n = (SELECT max(a) FROM global_temp.sales)",
    "a deletion that asks": f"DELETE FROM sales WHERE reflect({GETENV}) LIKE 'x%'",
    "a deletion by a program": (
        "DELETE FROM sales WHERE EXISTS (SELECT TRANSFORM(1) USING 'cat {file}' AS (x STRING))"
    ),
}  # fmt: skip
"""Statements, by what they try."""


@pytest.fixture(scope="module")
def outside(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file of the server, and tables and views of the application beside the environment; yields the file's path."""
    path = tmp_path_factory.mktemp("outside") / "secret.txt"
    path.write_text(f"{FILE}\n" * 3)
    beside = spark.newSession()
    beside.sql(f"CREATE OR REPLACE GLOBAL TEMPORARY VIEW sales AS SELECT '{FILE}' AS a")
    beside.sql(f"CREATE TABLE secrets USING parquet LOCATION '{path.parent}/secrets' AS SELECT '{FILE}' AS a")
    beside.sql(f"CREATE VIEW kept AS SELECT '{FILE}' AS a")
    yield path
    beside.sql("DROP VIEW kept")
    beside.sql("DROP TABLE secrets")
    beside.catalog.dropGlobalTempView("sales")


def secrets(path: Path) -> list[str]:
    """Return what no answer and no error may hold."""
    return [os.environ[IN_ENVIRONMENT], FILE, "third line", "IS_SANDBOX", "PATH=/", "/jvm/"]


def tried(served: Serving, text: str, path: Path) -> tuple[list[Any], str]:
    """Return the rows and the error that a client gets for ``text``."""
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(text.replace("{file}", str(path)))
            return cursor.fetchall(), ""
        except adbc.Error as error:
            return [], str(error)


@pytest.mark.parametrize("what", [*QUERIES, *STATEMENTS])
def test_a_client_reads_nothing_of_the_server(served: Serving, outside: Path, what: str) -> None:
    """Damage: who may read a table reads the server's passwords, its files, or runs programs there."""
    rows, error = tried(served, {**QUERIES, **STATEMENTS}[what], outside)
    for secret in secrets(outside):
        assert secret not in str(rows)
        assert secret not in error
    assert "Traceback" not in error
    assert "refused" not in error, "nothing was connected to"
    assert error or what in {"an entity of XML", "an entity of XPath"}, rows


@pytest.mark.parametrize("what", [what for what in QUERIES if what not in BY_ROWS])
def test_a_client_learns_nothing_by_preparing(served: Serving, outside: Path, what: str) -> None:
    """Damage: what may not run is analysed for a client that prepares it, which reads files and tables, too."""
    text = QUERIES[what].replace("{file}", str(outside))
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        for ask in (cursor.adbc_prepare, cursor.adbc_execute_schema):
            with pytest.raises(adbc.Error) as refused:
                ask(text)
            assert not any(secret in str(refused.value) for secret in secrets(outside))


def test_an_edit_with_a_schema_of_a_file_is_not_prepared(served: Serving, outside: Path) -> None:
    """Damage: Spark reads the file while it analyses the statement for its parameters."""
    schema = f"from_json('{{}}', from_xml('<a/>', 'b STRING', {XSD}).b).c".replace("{file}", str(outside))
    with adbc.connect(served.flight_sql[0], autocommit=True) as connection, connection.cursor() as cursor:
        for text in (
            f"UPDATE sales SET city = concat({schema}, ?)",
            f"DELETE FROM sales WHERE city = concat({schema}, ?)",
            f"DELETE FROM sales WHERE city = ? OR reflect({GETENV}) = ''",
            "UPDATE sales SET n = ? + (SELECT max(a) FROM global_temp.sales)",
        ):
            with pytest.raises(adbc.Error):
                cursor.adbc_prepare(text)
