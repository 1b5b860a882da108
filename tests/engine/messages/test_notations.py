"""Each text is the value that the table says, on every path that decodes it; what is none is an error, and no guess."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from itertools import count

import pytest
from tests.engine.messages.notations import BAD, STRINGLESS, TEXTS, TOKENS
from tests.engine.messages.test_decoder import raw

from strandline.algebra.messages import DatedFile, Encoding, FileFormat, MessageEncoding, MessageFormat, Shape
from strandline.algebra.schema import ERROR, Column, Schema
from strandline.engine.files import decoder
from strandline.engine.files.decoder import SparkFiles
from strandline.engine.frames.rows import Local, dataframe, unwrap
from strandline.engine.messages.decoder import SparkMessages
from strandline.testing.lists.list_engine import listed
from strandline.testing.lists.list_messages import ListMessages

pytestmark = pytest.mark.spark

NAMES = {kind: f"c{number}" for number, kind in enumerate(TEXTS)}
FLAT = Schema((Column("id", "int"), *(Column(name, kind) for kind, name in NAMES.items())))
LISTS = {kind: f"l{name}" for kind, name in NAMES.items()}
_FIELDS = ",".join(f"{name}:{kind}" for kind, name in NAMES.items())
SCHEMAS = {
    "plain": FLAT,
    "list": Schema((Column("id", "int"), *(Column(name, f"array<{kind}>") for kind, name in LISTS.items()))),
    "structs": Schema((Column("id", "int"), Column("t", f"array<struct<{_FIELDS}>>"))),
}
CASES = [(kind, text, value) for kind, texts in TEXTS.items() for text, value in texts.items()]


def _csv(number, kind, text):
    fields = ['"' + text.replace('"', '""') + '"' if each == kind else "" for each in NAMES]
    return ",".join([str(number), *fields])


def _seen(value):
    """Return a value so that equal ones are equal, NaN too."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    return repr(value)


def _wanted(cases, wrapped=lambda value: value):
    """Return what each case is: the value, or that it cannot be decoded."""
    return {number: BAD if value == BAD else _seen(wrapped(value)) for number, (_, _, value) in enumerate(cases)}


def _compare(cases, found, wanted):
    """Compare the decoded values by the number of their case."""
    differ = {number for number in wanted if found.get(number, BAD) != wanted[number]}
    assert not differ, [(*cases[number][:2], found.get(number, BAD), wanted[number]) for number in sorted(differ)]


def _values(rows, cases, names):
    """Return the values of good rows by the number of their case."""
    return {
        row["id"]: _seen(row[names[cases[row["id"]][0]]]) for row in rows if row.get(ERROR) is None and row["id"] >= 0
    }


@pytest.fixture
def files(spark, tmp_path, monkeypatch):
    """Decode files by a job or here; return their rows."""
    decoded, numbers = SparkFiles(spark), count()

    def run(contents, schema, form, *, here=False, locate=False):
        dated = []
        for content in contents:
            path = tmp_path / f"{next(numbers)}.{form.encoding.value}"
            path.write_bytes(content.encode())
            dated.append(DatedFile(str(path), path.name, path.stat().st_size, 7))
        with monkeypatch.context() as patch:
            if not here:
                patch.setattr(decoder, "is_small", lambda files, form: False)
            rows = unwrap(asyncio.run(decoded.decode(dated, schema, form, locate=locate)))
        assert isinstance(rows, Local) == here
        return dataframe(rows, spark).toArrow().to_pylist()

    return run


def test_a_field_of_csv_is_the_value_that_its_table_says(spark, files):
    """Damage: 68,83 becomes 6883, in a job, in a small file, over several lines, or in a message."""
    lines = [_csv(number, kind, text) for number, (kind, text, _) in enumerate(CASES)]
    wanted = _wanted(CASES)
    bad = sum(value == BAD for value in wanted.values())
    header = ",".join(FLAT.names)
    text = "\n".join([header, *lines, ""])
    for form in (FileFormat(Encoding.CSV), FileFormat(Encoding.CSV, multiline=True)):
        for how in [{}, {"locate": True}, *([{"here": True}] if not form.multiline else [])]:
            rows = files([text], FLAT, form, **how)
            _compare(CASES, _values(rows, CASES, NAMES), wanted)
            errors = [row for row in rows if row[ERROR] is not None]
            assert len(errors) == bad
            if "locate" in how:
                told = {each["line"]: each for each in (json.loads(row[ERROR]) for row in errors)}
                assert {line - 2 for line in told} == {number for number, value in wanted.items() if value == BAD}
                assert all(told[line]["raw"].rstrip("\n") == lines[line - 2] for line in told)
                assert all("is not a valid" in told[line]["reason"] for line in told)
    table = raw(lines)
    form = MessageFormat(MessageEncoding.CSV)
    rows = unwrap(asyncio.run(SparkMessages(spark).messages(table, FLAT, form, locate=True))).table.to_pylist()
    _compare(CASES, _values(rows, CASES, NAMES), wanted)
    assert all("is not a valid" in row[ERROR] for row in rows if row[ERROR] is not None)


def test_a_key_of_text_is_the_value_that_its_table_says(spark):
    """Damage: a message deletes the row of another key, which is near its own."""
    messages = SparkMessages(spark)
    for kind, texts in TEXTS.items():
        schema = Schema((Column("c", kind), Column("id", "int")))
        form = MessageFormat(MessageEncoding.JSON, Shape.UPSERT, ("c",), MessageEncoding.TEXT)
        cases = [(kind, text, value) for text, value in texts.items()]
        table = raw([f'{{"id":{number}}}' for number in range(len(cases))], list(texts))
        there = unwrap(asyncio.run(messages.messages(table, schema, form, locate=True))).table.to_pylist()
        here = listed(asyncio.run(ListMessages().messages(table, schema, form, locate=True))).rows
        for rows in (there, here):
            _compare(cases, _values(rows, cases, {kind: "c"}), _wanted(cases))


JSON_CASES = [(kind, token, value) for kind, tokens in TOKENS.items() for token, value in tokens.items()]
SHAPES = {
    "plain": (NAMES, '"{name}":{token}', lambda name, value: value),
    "list": (LISTS, '"{name}" : [ null,{token} ]', lambda name, value: [None, value]),
    "structs": (dict.fromkeys(NAMES, "t"), '"t":[{{}},{{"{name}":{token}}}]', None),
}


def _json(number, kind, token, shape):
    name = (LISTS if shape == "list" else NAMES)[kind]
    return f'{{"id":{number},{SHAPES[shape][1].format(name=name, token=token)}}}'


def _json_values(rows, shape):
    found = {}
    for row in rows:
        if row.get(ERROR) is None:
            kind = JSON_CASES[row["id"]][0]
            value = row[SHAPES[shape][0][kind]]
            match shape:
                case "list":
                    value = value[1]
                case "structs":
                    value = value[1][NAMES[kind]]
            found[row["id"]] = _seen(value)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_of_json_is_the_value_that_its_table_says(spark, files, shape):
    """Damage: 68,83 becomes 6883, at the top, or deep inside."""
    lines = [_json(number, kind, token, shape) for number, (kind, token, _) in enumerate(JSON_CASES)]
    wanted = _wanted(JSON_CASES)
    bad = sum(value == BAD for value in wanted.values())
    form = FileFormat(Encoding.JSON)
    for how in ({"here": True}, *([{}, {"locate": True}] if shape == "plain" else [])):
        rows = files(["\n".join(lines)], SCHEMAS[shape], form, **how)
        _compare(JSON_CASES, _json_values(rows, shape), wanted)
        assert sum(row[ERROR] is not None for row in rows) == bad
    if shape != "plain":
        return
    form = MessageFormat(MessageEncoding.JSON)
    rows = unwrap(asyncio.run(SparkMessages(spark).messages(raw(lines), FLAT, form, locate=True))).table.to_pylist()
    _compare(JSON_CASES, _json_values(rows, shape), wanted)


def test_a_json_file_over_lines_is_its_table(files):
    """Damage: one more path guesses."""
    wanted = _wanted(JSON_CASES)
    form = FileFormat(Encoding.JSON, multiline=True)
    lines = [_json(number, kind, token, "plain") for number, (kind, token, _) in enumerate(JSON_CASES)]
    good = ",\n".join(line for number, line in enumerate(lines) if wanted.get(number, BAD) != BAD)
    found = _json_values(files([f"[{good}]"], FLAT, form), "plain")
    assert found == {number: value for number, value in wanted.items() if value != BAD}
    bad = [line for number, line in enumerate(lines) if wanted.get(number) == BAD]
    rows = files(bad, FLAT, form)
    assert len(rows) == len(bad)
    assert [row for row in rows if row[ERROR] is None] == []


def test_a_change_of_debezium_is_its_table(spark):
    """Damage: the text of a number is a day, or a number of microseconds a moment of another year."""
    own = {}
    for number, (kind, token, value) in enumerate(JSON_CASES):
        whole = not token.startswith('"') and value != BAD
        own[number] = BAD if kind == "timestamp" and whole else value
    cases = [(kind, token, own[number]) for number, (kind, token, _) in enumerate(JSON_CASES)]
    days = {"18262": dt.date(2020, 1, 1), "-719162": dt.date(1, 1, 1), "20200102": BAD, '"18262"': BAD, "1.5": BAD}
    cases = [case for case in cases if case[0] != "date" or case[1] not in days]
    cases += [("date", token, value) for token, value in days.items()]
    changes = [
        f'{{"op":"c","source":{{"c1":"68,83"}},"after":{{"id":{number},"{NAMES[kind]}":{token}}}}}'
        for number, (kind, token, _) in enumerate(cases)
    ]
    form = MessageFormat(MessageEncoding.JSON, Shape.DEBEZIUM, ("id",))
    rows = unwrap(asyncio.run(SparkMessages(spark).messages(raw(changes), FLAT, form, locate=True))).table.to_pylist()
    _compare(cases, _values([{**row, "id": row["id"] or 0} for row in rows], cases, NAMES), _wanted(cases))
    reasons = [json.loads(row[ERROR])["reason"] for row in rows if row[ERROR] is not None]
    assert sum("is not a valid" in reason for reason in reasons) > len(reasons) * 0.9


def test_lists_decode_json_as_their_table_says():
    """Damage: a simulation decodes what no environment does, or the other way round."""
    cases = [case for case in JSON_CASES if case[0] != "string"]
    lines = [_json(number, kind, token, "plain") for number, (kind, token, _) in enumerate(cases)]
    form = MessageFormat(MessageEncoding.JSON)
    rows = listed(asyncio.run(ListMessages().messages(raw(lines), FLAT, form, locate=True))).rows
    single = {number for number, case in enumerate(cases) if "'" in case[1][:1] or case[1] == "07"}
    found = _values(rows, cases, NAMES)
    wanted = {number: value for number, value in _wanted(cases).items() if number not in single}
    _compare(cases, found, wanted)


assert set(TOKENS) >= STRINGLESS
