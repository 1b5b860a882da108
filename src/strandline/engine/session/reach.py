"""What a text may reach: the collections that it names and the values in it, and nothing of the server.

Spark's SQL reads the environment, the files, the catalogs and the Java of the process that runs it.  Three things keep
a text from them; the threat model has the whole list, and a test tries each row of it.

1. `FIXED` settings: Spark replaces nothing in a text, and a path is no relation.
2. `close` takes out of a session the functions that reach outside (`BARRED`).  What is not there cannot be called,
   however its name is written.
3. `refuse` looks at what Spark made of a text: no program runs in it, and each relation is a view that we have named.

Trap: Spark evaluates constants while it analyses (a schema, options, IDENTIFIER).  So what reaches outside must be gone
before that: `refuse_unread` looks at the text as Spark has parsed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from strandline.errors import ConfigError, DefinitionError

FIXED: Final[Mapping[str, str]] = {
    # `${env:NAME}` in a text, a name or a literal would become the server's environment variable, `${x}` nothing.
    "spark.sql.variable.substitute": "false",
    # A relation is a frame we named or nothing: no file is reachable by writing its path into a query.
    "spark.sql.runSQLOnFiles": "false",
}
"""Settings of every session that reads texts of others; no configuration changes them."""

_JAVA: Final = "it would call the server's Java"
_ACCOUNT: Final = "it would tell the account that the server runs under"
_FILES: Final = "its arguments may name files of the server"
_PLACES: Final = "it would tell where the server keeps its files"
BARRED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("java_method", "reflect", "try_reflect"), _JAVA),
    **dict.fromkeys(("current_user", "session_user", "user"), _ACCOUNT),
    **dict.fromkeys(("from_avro", "from_protobuf", "schema_of_avro", "to_avro", "to_protobuf"), _FILES),
    **dict.fromkeys(("input_file_block_length", "input_file_block_start", "input_file_name"), _PLACES),
    "python_worker_logs": "it would show what the server logs",
    "schema_of_xml": _FILES,
}
"""Functions that no text may call, with the reason."""

KEPT: Final = (
    "spark.sql.artifact.",  # where the Python of executors looks for modules
    "spark.sql.adaptive.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.codegen.",
    "spark.sql.inMemoryColumnarStorage.",
    "spark.sql.maxBroadcastTableSize",
    "spark.sql.shuffle.",
)
"""Settings of an application that only say how Spark computes; any other may change what a text means."""

_LOGICAL: Final = "org.apache.spark.sql.catalyst.plans.logical."
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
_LEAVES: Final = frozenset(
    f"{_LOGICAL}{name}"
    for name in ("CTERelationRef", "EmptyRelation", "LocalRelation", "OneRowRelation", "Range", "UnionLoopRef")
)
"""What gives rows without reading anything: VALUES, range(…), the names of WITH."""
_TREE: Final = "org.apache.spark.sql.catalyst.trees.TreeNode"
_SCHEMA_FILE: Final = "rowvalidationxsdpath"
"""The option of XML functions that names a file."""


EXTERNAL_DTD: Final = "javax.xml.accessExternalDTD"
"""A property of Java: if it is empty, the XML of a row has no document type fetched from a network or a file."""


def close(session: SparkSession) -> None:
    """Take out of a session of our own what no text may reach.

    In this JVM `EXTERNAL_DTD` is emptied too; executors elsewhere have them from the start (`start.build`).
    """
    state = session._jsparkSession.sessionState()  # noqa: SLF001 - no public call forgets a function
    jvm: Any = session._jvm  # noqa: SLF001
    jvm.java.lang.System.setProperty(EXTERNAL_DTD, "")
    some = jvm.scala.Option.apply
    for name in BARRED:
        found = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
        state.functionRegistry().dropFunction(found)
        state.tableFunctionRegistry().dropFunction(found)


def forget(session: SparkSession) -> None:
    """Unset, in a session of our own, the application's settings under ``spark.sql.`` that change what a text means."""
    for key in session.conf.getAll:
        if key.startswith("spark.sql.") and not key.startswith(KEPT) and session.conf.isModifiable(key):
            session.conf.unset(key)


def refuse_settings(config: Mapping[str, str]) -> None:
    """Raise `ConfigError` if ``config`` would open what is closed."""
    for key, value in FIXED.items():
        if str(config.get(key, value)).strip().lower() != value:
            raise ConfigError(
                f"{key} cannot be {config[key]!r}: a statement could read the server's environment or files by it; "
                "leave it out"
            )


def refuse_unread(session: SparkSession, sql: str, *, expression: bool = False) -> None:
    """Raise `DefinitionError` if Spark's analysis of ``sql`` itself could reach outside; nothing if it does not parse.

    ``expression``: it is an expression, and no query.
    """
    if "xml" not in sql.lower() and "IDENTIFIER" not in sql.upper():
        return
    parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - no public call only parses
    parsed = parser.parseExpression(sql) if expression else parser.parsePlan(sql)
    types: Any = session._jvm.py4j.reflection.TypeUtil  # type: ignore[union-attr]  # noqa: SLF001
    for node in _all(types, parsed):
        if _kind(node).endswith("WithUnresolvedIdentifier"):
            raise DefinitionError("the argument of IDENTIFIER must be one literal; or write the name itself")
        if _kind(node) == "UnresolvedFunction" and node.nameParts().last().lower() == "from_xml":
            given = node.arguments()
            if not all(_are_harmless(types, given.apply(index)) for index in range(2, given.size())):
                raise DefinitionError(
                    "from_xml takes options as a map of literals, map('mode', 'PERMISSIVE'), and no "
                    "rowValidationXSDPath, which would read a file of the server"
                )


def _are_harmless(types: Any, options: Any) -> bool:
    """Return whether options are a map of literals, and name no file: what else they may be is known too late."""
    trees = [each for each in _all(types, options) if types.isInstanceOf(_TREE, each)]
    calls = [each for each in trees if _kind(each) == "UnresolvedFunction"]
    literals = [each for each in trees if _kind(each) == "Literal"]
    return (
        len(calls) == 1
        and len(calls) + len(literals) == len(trees)
        and calls[0].nameParts().last().lower() == "map"
        and all(str(each.value()).lower() != _SCHEMA_FILE for each in literals)
    )


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def analysed_json(query: DataFrame) -> str:
    """Return the analysed plan of a query as JSON."""
    return str(query._jdf.queryExecution().analyzed().toJSON())  # noqa: SLF001 - no public call gives it


def refuse(query: DataFrame) -> None:
    """Raise `DefinitionError` if an analysed query runs a program, or reads what is no view of its own session."""
    refuse_plan(analysed_json(query))


def refuse_plan(analysed: str, *, kept: bool = False) -> None:
    """As `refuse`, of what `analysed_json` returns.

    ``kept``: it is a view's, and its planner refuses the names of accounts itself (`doubts`).
    """
    for node in _nodes(json.loads(analysed)):
        kind: str = node["class"]
        name = kind.rpartition(".")[2]
        if name == "ScriptTransformation":
            raise DefinitionError("TRANSFORM … USING runs a program of the server; no statement can do that")
        if name == "CurrentUser" and not kept:
            raise DefinitionError(_why("current_user"))
        if name == "View" or (node["num-children"] == 0 and not kind.startswith(_EXPRESSIONS) and kind not in _LEAVES):
            raise DefinitionError(
                f"a query reads the collections of its environment alone, and this one reads {_told(node)}"
            )


def python_called(query: DataFrame) -> frozenset[str]:
    """Return the names of the functions of Python that an analysed query calls."""
    return frozenset(
        str(node["name"]) for node in _nodes(json.loads(analysed_json(query))) if node["class"].endswith(".PythonUDF")
    )


def barred(name: str) -> str | None:
    """Return why no text may call the function ``name``; None if that is not why it is unknown.

    >>> barred("REFLECT")
    "the function reflect cannot be called: it would call the server's Java"
    """
    bare = name.replace("`", "").rpartition(".")[2].lower()
    return _why(bare) if bare in BARRED else None


def _why(name: str) -> str:
    return f"the function {name} cannot be called: {BARRED[name]}"


def _nodes(trees: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan and of all that it holds, in Spark's JSON, but not what is below a view of ours.

    A tree is a list of its nodes, each before its children.
    """
    position = 0
    while position < len(trees):
        node = trees[position]
        if not isinstance(node, dict) or "num-children" not in node:
            if isinstance(node, list):
                yield from _nodes(node)
            elif isinstance(node, dict):
                yield from _nodes([each for each in node.values() if isinstance(each, list)])
            position += 1
            continue
        if _is_ours(node):
            position = _behind(trees, position)
            continue
        yield node
        yield from _nodes([each for each in node.values() if isinstance(each, list)])
        position += 1


def _is_ours(node: Mapping[str, Any]) -> bool:
    """Return whether a node is a temporary view of its own session: a global one has a database."""
    return (
        node["class"] == f"{_LOGICAL}View"
        and node.get("isTempView") is True
        and "database" not in node["desc"]["identifier"]
    )


def _behind(trees: Any, position: int) -> int:
    """Return where the tree that begins at ``position`` ends."""
    missing = 1
    while missing:
        missing += trees[position]["num-children"] - 1
        position += 1
    return position


def _told(node: Mapping[str, Any]) -> str:
    """Return how a message names a relation that is none of ours."""
    described = node.get("desc") or node.get("catalogTable") or node.get("tableMeta") or node
    identifier = described.get("identifier")
    match identifier:
        case {"table": str(table)}:
            return f"another table, {table}"
        case str(text):
            return f"another table, {text}"
    return "something else of Spark's"


def _all(types: Any, root: Any) -> Iterator[Any]:
    """Yield each tree, product and option of Scala's in ``root``: also what is behind WITH, and subqueries."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if not hasattr(node, "getClass"):
            continue  # a text, a number, or nothing: no object of the JVM
        if types.isInstanceOf("scala.collection.Iterable", node):
            parts = node.iterator()
        elif types.isInstanceOf("scala.Product", node):
            yield node
            parts = node.productIterator()
        else:
            continue
        while parts.hasNext():
            waiting.append(parts.next())
