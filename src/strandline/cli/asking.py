"""Commands that ask, and `sql`, which may also write: open, ask, print."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from strandline.cli.terminal.opening import Asked, Opener
from strandline.cli.terminal.output import Output, rows_document, rows_table, table
from strandline.client import Progress, Transaction, Updates
from strandline.controller.asking.freshness import told
from strandline.controller.language import statements
from strandline.controller.language.showing import Show
from strandline.errors import ConfigError, DefinitionError, Position
from strandline.frontier import moments
from strandline.instance.error_half import described, remedy
from strandline.serving import RemoteEnvironment, RemoteTransaction

_COLLECTION: Final = ("kind", "phase", "lag", "since", "upper", "updates", "parts", "errors", "problem")


def status(opener: Opener, root: Path, output: Output) -> None:
    """Print the status of the environment."""
    with opener.reading(opener.project(root), output.note) as env:
        found = {"serving": None, **env.status()}  # what serves says itself where
    output.result(found, _written_by(found))
    if output.json:
        return
    lines = [
        (name, *(_cell(each.get(column)) for column in _COLLECTION)) for name, each in found["collections"].items()
    ]
    output.console.print(table(("collection", *_COLLECTION), lines))
    for name, each in found["sources"].items():
        if name not in found["collections"]:
            output.result({}, _source(name, each))
    for name, each in found["collections"].items():
        if each["first"] is not None:
            output.result({}, f"{name}: {each['phase']}, {_begun(each['first'])}")
        first = (each.get("errors") or {}).get("first", ())
        for error in first:
            output.result({}, f"{name}: {described(error)}")
        if first:
            output.result({}, f"{name}: {remedy(first[0])}")
        for notice in each["notices"]:
            output.result({}, f"{name}: {notice}")
    for name, counts in (("this process", found["persist"]), ("the writer", found["writer_persist"] or {})):
        if shown := ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items() if value):
            output.result({}, f"store counters of {name}: {shown}")
    for name, each in found["materializations"].items():
        moving, each["lag"] = each.pop("moving") or {}, told({**each["lag"], "rows": None})
        shown = ", ".join(f"{key} {value}" for key, value in each.items() if value not in (None, [], ""))
        if any(moving.values()):
            shown += f", under way: {moving['read']} of about {moving['about']} rows read, {moving['sent']} sent"
        output.result({}, f"materialization {name}: {shown}")
    for name, each in found["instances"].items():
        for line in _instance(name, each):
            output.result({}, line)
    if found["next"] is not None:
        for line in _next(found["next"]):
            output.result({}, line)
    known = {name.lower() for kind in ("collections", "sources", "materializations") for name in found[kind]}
    for name in sorted(found["problems"].keys() - known):
        output.result({}, f"{name}: {found['problems'][name]}")


def _instance(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an instance runs and how each of its replicas is, for people."""
    yield f"instance {name}: {', '.join(found['items']) or 'nothing runs in it'}"
    for replica, each in found["replicas"].items():
        went, reused, created = sum(each.get("replaced", {}).values()), each.get("reused", 0), each.get("created", 0)
        kept = f"connected; at the last connection {reused} items were kept, {created} begun, {went} replaced"
        here = f"instance {name}, replica {replica} at {each['address']}"
        yield f"{here}: {kept if each.get('obeys') else each.get('problem', 'it compares what it runs')}"
        if each.get("obeys") and each.get("problem"):
            yield f"{here}: {each['problem']}"
        for item, why in each.get("problems", {}).items():
            yield f"{here}, {item}: {why}"


def _next(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield how far the next version is, for people."""
    asked = ", and its promotion is asked for" if found["asked"] else ""
    yield f"next version: {'it has caught up' if found['ready'] else 'it has not caught up yet'}{asked}"
    for name, each in found["views"].items():
        why = each["behind"] or each["later"] or told({"ms": each["lag_ms"], "rows": None})
        yield f"next version, {name}: {why}"


def query(opener: Opener, root: Path, sql: str, as_of: int | None, output: Output) -> None:
    """Print the answer to a query."""
    with opener.reading(opener.project(root), output.note) as env:
        _answer(env, sql, as_of, output)


def subscribe(opener: Opener, root: Path, name: str, as_of: int | None, until: int | None, output: Output) -> None:
    """Print the contents of a collection at ``as_of``, then each change before ``until``, as they become complete.

    With ``--json`` each update is a document with ``__time`` and ``__diff``, and so is each progress: ``upper``.
    """
    with (
        opener.beside(opener.project(root), output.note) as env,  # it outlives the process that writes
        closing(env.subscribe(name, as_of, until)) as events,
        suppress(KeyboardInterrupt),
        _interrupted(),
    ):
        for event in events:
            match event:
                case Updates(rows):
                    for row in rows.to_pylist():
                        shown = ", ".join(f"{key} {value}" for key, value in row.items() if not key.startswith("__"))
                        output.result(row, f"{row['__time']} {row['__diff']:+}: {shown}")
                case Progress(upper):
                    text = "it is closed: nothing more comes" if upper is None else f"complete before {upper}"
                    output.result({"upper": upper}, text)


def explain(opener: Opener, root: Path, name: str, output: Output) -> None:
    """Print how a view is maintained."""
    with opener.reading(opener.project(root), output.note) as env:
        found = env.explain(name)
    document = {"name": name, "incremental": found.incremental, "reasons": found.reasons, "stages": found.stages}
    output.result(document, str(found))


def script(opener: Opener, root: Path, file: Path, output: Output) -> None:
    """Run the statements of a file.  A script that only reads does not block the writer."""
    project = opener.project(root)
    text = _text(file)
    parsed = [(each, project.resolved(statements.parse(each))) for each in statements.placed(text)]
    writes = any(not isinstance(statement, statements.Question) for _, statement in parsed)
    _refuse_loose_ends(parsed)
    if not parsed:
        output.note(f"there is no statement in {str(file)!r}")
        return
    with opener.changing(project) if writes else opener.reading(project, output.note) as env:
        transaction: Transaction | RemoteTransaction | None = None
        for each, statement in parsed:
            match statement:
                case statements.Query() | Show():
                    _answer(env, each, None, output)
                case statements.Bracket("BEGIN"):
                    transaction = env.begin()
                case statements.Bracket(word):
                    if transaction is not None and word == "COMMIT":
                        _said("Transaction", transaction.commit(), output)
                    transaction = None
                case _ if isinstance(transaction, RemoteTransaction):
                    transaction.execute(each)
                case _ if transaction is not None:
                    transaction.execute(statement)
                case _:
                    time = env.execute(each) if isinstance(env, RemoteEnvironment) else env.execute(statement)
                    _said(type(statement).__name__, time, output)


def _refuse_loose_ends(parsed: Sequence[tuple[str, statements.Statement]]) -> None:
    """Refuse a script with unmatched BEGIN, COMMIT or ROLLBACK, before any of it runs."""
    begun: Position | None = None
    for _, statement in parsed:
        if isinstance(statement, statements.Bracket):
            at = statement.at
            assert at is not None, "it was read from the script"
            if (statement.word == "BEGIN") == (begun is not None):
                where = "outside any transaction" if begun is None else f"inside the transaction of {begun}"
                raise DefinitionError(f"{statement.word} {where}", at)
            begun = at if begun is None else None
    if begun is not None:
        raise DefinitionError("this transaction has neither COMMIT nor ROLLBACK", begun)


def _said(name: str, timestamp: int | None, output: Output) -> None:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).upper()
    said = f"{words}: done" if timestamp is None else f"{words}: committed at {timestamp}"
    output.result({"statement": name, "timestamp": timestamp}, said)


@contextmanager
def _interrupted() -> Iterator[None]:
    """Let SIGTERM end what goes on as SIGINT does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _answer(env: Asked, sql: str, as_of: int | None, output: Output) -> None:
    rows, time = env.answer(sql, as_of)
    output.result({"as_of": time, **rows_document(rows)}, rows_table(rows))
    if time is not None and not output.json:
        output.note(f"true at {moments.shown(time)}")


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text()
    except OSError as error:
        raise ConfigError(f"the file {str(file)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file {str(file)!r} is not text in UTF-8 (byte {error.start + 1})") from error


def _source(name: str, each: Mapping[str, Any]) -> str:
    """Return a source in a line: what it reads, by which connections, what it feeds, and what keeps it."""
    by = f" by {', '.join(each['connections'])}" if each["connections"] else ""
    feeds = f", feeds {', '.join(each['tables']) or 'no table yet'}"
    said = "".join(f"; {text}" for text in (each["problem"], *each["notices"]) if text)
    return f"source {name}: {each['connector']}{by}{feeds}{said}"


def _begun(first: Mapping[str, Any]) -> str:
    """Return how far the first load or result of a collection is.

    >>> _begun({"rows": 1200, "about": 5000, "ms": 65_000}), _begun({"rows": 3, "about": None, "ms": None})
    ('1,200 of about 5,000 rows, for 1 min 5 s', '3 rows')
    """
    about = "" if first["about"] is None else f" of about {first['about']:,}"
    since = "" if first["ms"] is None else f", for {told({'ms': first['ms'], 'rows': None})}"
    return f"{first['rows']:,}{about} rows{since}"


def _written_by(found: Mapping[str, Any]) -> str:
    return f"generation {found['epoch']}, written by {found['holder'] or 'no process now'}"


def _cell(value: object) -> object:
    """Return a table cell: empty for a value that does not apply, a number for errors, a duration for a lag."""
    if isinstance(value, Mapping):
        return told(value) if "ms" in value else value["rows"]
    return "" if value is None else value
