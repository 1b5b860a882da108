"""Sampled columns: the types that texts and JSON values seem to have, for a person who is about to define a source.

A sample is a guess: a column that was a number in all of it may be a text in the next record.  So as much is looked at
as takes seconds (`SAMPLE_BYTES`).  A text counts as a number, a day or a time only if it is written in the one way that
every reader of the type takes: ``007``, ``1.234,5`` and ``12:30`` are texts.  Where records differ, or a type has no
counterpart, the guess is ``string``, which every text is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, Union

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from strandline.algebra.messages import FileFormat
from strandline.algebra.stored import first_record, struct_text

SAMPLE_BYTES: Final = 32 << 20
"""How much of a file is looked at."""
BLOCK_BYTES: Final = 1 << 20
NULL_TOKENS: Final = ("NA", "N/A", "n/a", "NULL", "null", "None", r"\N", "-")
"""Texts that stand for no value in many files."""
_DAY: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?"
_HUGE: Final = "decimal(38,0)"
_TEXTS: Final = {
    "boolean": "true|false|True|False|TRUE|FALSE",
    "bigint": "-?(?:0|[1-9][0-9]{0,17})",
    _HUGE: "-?(?:0|[1-9][0-9]{0,37})",
    # a whole number of more digits is an identifier or an amount, and a double would not keep it
    "double": "-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]{1,2})|-?(?:0|[1-9][0-9]*)[.][0-9]+"
    "|-?(?:0|[1-9][0-9]{0,14})|NaN",
    "date": _DAY,
    "timestamp": f"{_DAY}[ T]{_CLOCK}(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9])",
    "timestamp_ntz": f"{_DAY}[ T]{_CLOCK}",
}
"""How values of a type are written, the narrowest type first."""
_DATED: Final = ("date", "timestamp", "timestamp_ntz")
_EXACT_MAX: Final = 10**15
"""Every double keeps fifteen digits."""
_BIGINT_MAX: Final = 10**18
_HUGE_MAX: Final = 10**38


# --- CSV --------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Texts:
    """What a column's texts may be read as, and the tokens of `NULL_TOKENS` among them."""

    kinds: tuple[str, ...] = tuple(_TEXTS)
    tokens: set[str] = field(default_factory=set)
    some: bool = False

    def see(self, values: pa.Array) -> None:
        """Take note of texts; empty ones say nothing."""
        token = pc.is_in(values, pa.array([each.encode() for each in NULL_TOKENS]))
        self.tokens |= {each.decode() for each in pc.unique(values.filter(token)).to_pylist()}
        texts = values.filter(pc.and_not(pc.greater(pc.binary_length(values), 0), token))
        self.some |= len(texts) > 0
        self.kinds = tuple(kind for kind in self.kinds if _all_are(kind, texts))

    def joined(self, other: _Texts) -> _Texts:
        """Return what both say."""
        kinds = tuple(kind for kind in self.kinds if kind in other.kinds)
        return _Texts(kinds, self.tokens | other.tokens, self.some or other.some)

    @property
    def kind(self) -> str:
        """The type of the texts but for the tokens."""
        return self.kinds[0] if self.kinds and self.some else "string"


def _all_are(kind: str, texts: pa.Array) -> bool:
    if pc.all(pc.match_substring_regex(texts, f"^(?:{_TEXTS[kind]})$")).as_py() is False:
        return False
    try:
        if kind in _DATED:  # the thirtieth of February is no day
            pc.binary_slice(texts, 0, 10).cast(pa.string()).cast(pa.date32())
    except pa.ArrowInvalid:
        return False
    return True


@dataclass(frozen=True, slots=True)
class CsvSample:
    """What CSV files with columns of these ``names`` seem to hold; ``whole``: all of them was looked at."""

    names: tuple[str, ...]
    texts: tuple[_Texts, ...]
    whole: bool

    @property
    def null(self) -> str:
        """The token that stands for NULL: the only one among numbers, days and times, and in no text; or nothing."""
        typed = {token for texts in self.texts if texts.kind != "string" for token in texts.tokens}
        in_texts = {token for texts in self.texts if texts.kind == "string" and texts.some for token in texts.tokens}
        tokens = typed - in_texts
        return next(iter(tokens)) if len(tokens) == 1 else ""

    @property
    def columns(self) -> list[tuple[str, str | None]]:
        """The columns with their types, if `null` is read as NULL."""
        kinds = [texts.kind if texts.tokens <= {self.null} else "string" for texts in self.texts]
        return [*zip(self.names, kinds, strict=True)]

    def held(self, null: str) -> list[tuple[str, str]]:
        """Return the columns that have a value, with their types, where ``null`` is read as NULL."""
        found = [*zip(self.names, self.texts, strict=True)]
        valued = [(name, texts) for name, texts in found if texts.some or texts.tokens - {null}]
        return [(name, texts.kind if texts.tokens <= {null} else "string") for name, texts in valued]

    def joined(self, other: CsvSample) -> CsvSample:
        """Return what both are a sample of; they have the same names."""
        both = zip(self.texts, other.texts, strict=True)
        return CsvSample(self.names, tuple(one.joined(two) for one, two in both), self.whole and other.whole)


def of_csv(
    opened: Callable[[], pa.NativeFile],
    form: FileFormat,
    declared: Collection[str] = (),
    only: Collection[str] | None = None,
) -> CsvSample:
    r"""Return a sample of a CSV file, which ``opened`` opens anew; without a header its columns are ``f0``, ``f1``, ….

    ``declared``: the columns that are known, as `FirstRecord.names` takes them.  ``only``: of these columns alone, of
    which there are some, and of all their values.

    >>> from strandline.algebra.messages import Encoding
    >>> found = of_csv(lambda: pa.BufferReader(b"id,city,n\n1,Delft,NA\n2,Gh,7\n"), FileFormat(Encoding.CSV))
    >>> found.columns, found.null
    ([('id', 'bigint'), ('city', 'string'), ('n', 'bigint')], 'NA')

    Raises `ValueError` if it cannot be read.
    """
    with opened() as stream:
        first = first_record(stream.read(BLOCK_BYTES).decode("utf-8-sig", errors="replace"), form)
    if first is None:
        return CsvSample((), (), whole=True)
    names = first.names(declared) if form.header else tuple(f"f{number}" for number in range(len(first.fields)))
    seen = tuple(_Texts() if only is None or name in only else None for name in names)
    bytes_max = SAMPLE_BYTES if only is None else None
    try:
        with opened() as stream:
            whole = _look(stream, first.line if form.header else 0, form, seen, bytes_max)
    except pa.ArrowInvalid as error:
        raise ValueError(f"this is no CSV that can be read: {error}") from error
    found = [(name, texts) for name, texts in zip(names, seen, strict=True) if texts is not None]
    return CsvSample(tuple(name for name, _ in found), tuple(texts for _, texts in found), whole)


def _look(
    stream: pa.NativeFile, skipped: int, form: FileFormat, seen: Sequence[_Texts | None], bytes_max: int | None
) -> bool:
    """Look at the records behind the first lines, at columns that are not None; return whether these were all."""
    names = [str(number) for number in range(len(seen))]
    read = csv.ReadOptions(column_names=names, skip_rows=skipped, block_size=BLOCK_BYTES)
    parse = csv.ParseOptions(delimiter=form.delimiter, quote_char=form.quote, invalid_row_handler=lambda _: "skip")
    looked_at = {name: texts for name, texts in zip(names, seen, strict=True) if texts is not None}
    as_they_are = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        include_columns=[*looked_at],
        check_utf8=False,
        null_values=[],
        strings_can_be_null=False,
    )
    looked = 0
    try:
        batches = csv.open_csv(stream, read, parse, as_they_are)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return True  # the header is all there is
        raise
    for batch in batches:
        if bytes_max is not None and looked >= bytes_max:
            return False
        looked += batch.nbytes
        for texts, values in zip(looked_at.values(), batch.columns, strict=True):
            texts.see(values)
    return True


# --- JSON -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _List:
    element: Shape


@dataclass(frozen=True, slots=True)
class _Object:
    fields: dict[str, Shape]


Shape: TypeAlias = Union[str, _List, _Object, None]  # noqa: UP007 - the names are not known yet
"""What a JSON value is: a plain type, a list, an object; None: nothing was seen but null."""


@dataclass(frozen=True, slots=True)
class JsonSample:
    """What JSON objects seem to hold; ``whole``: all of them were looked at."""

    fields: Mapping[str, Shape]
    whole: bool = True

    @property
    def columns(self) -> list[tuple[str, str | None]]:
        """The columns with their types; one whose values differ in kind is a string."""
        return [(name, _text(shape)) for name, shape in self.fields.items()]

    @property
    def held(self) -> list[tuple[str, str]]:
        """The columns that have a value other than null, with their types."""
        return [(name, _text(shape)) for name, shape in self.fields.items() if shape is not None]

    def joined(self, other: JsonSample) -> JsonSample:
        """Return what both are a sample of."""
        return JsonSample(_each_either(self.fields, other.fields), self.whole and other.whole)


class _Bare:
    """A number that is none: ``NaN`` and ``Infinity``, which only some readers take."""

    def __init__(self, _: str) -> None:
        """Forget which."""


def of_json(records: Iterable[bytes], *, whole: bool = True) -> JsonSample:
    """Return a sample of JSON objects; ``whole``: these are all.

    >>> of_json([b'{"id": 1, "tags": ["a"]}', b'{"id": 2.5, "x": null}']).columns
    [('id', 'double'), ('tags', 'array<string>'), ('x', 'string')]

    Raises `ValueError` if there are records, and none is an object.
    """
    found: Shape = None
    refused = ""
    for record in records:
        try:
            value = json.loads(record, parse_constant=_Bare)
        except (ValueError, RecursionError) as error:
            refused = f"{record[:80]!r} ({error})"
            continue
        if isinstance(value, dict):
            found = _either(found, _shape(value))
        else:
            refused = repr(record[:80])
    if found is None and refused:
        raise ValueError(f"this is no JSON object: {refused}")
    return JsonSample(found.fields if isinstance(found, _Object) else {}, whole)


def of_objects(objects: Iterable[Mapping[str, Any]]) -> JsonSample:
    """Return a sample of objects as `json` has made them of JSON.

    >>> of_objects([{"a": 1, "b": None}, {"a": 2}]).columns
    [('a', 'bigint'), ('b', 'string')]
    """
    found: Shape = None
    for each in objects:
        found = _either(found, _shape(dict(each)))
    return JsonSample(found.fields if isinstance(found, _Object) else {})


def _shape(value: Any) -> Shape:
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            limits = ((_EXACT_MAX, "bigint"), (_BIGINT_MAX, _LONG), (_HUGE_MAX, _HUGE))
            return next((kind for limit, kind in limits if abs(value) < limit), "string")
        case float():
            return "double"
        case str():
            texts = pa.array([value.encode(errors="replace")])
            return next(
                (kind for kind in _DATED if _PATTERNS[kind].fullmatch(value) and _all_are(kind, texts)), "string"
            )
        case list():
            element: Shape = None
            for each in value:
                element = _either(element, _shape(each))
            return _List(element)
        case dict():
            return _Object({name: _shape(each) for name, each in value.items()})
    return "string"


_PATTERNS: Final = {kind: re.compile(_TEXTS[kind]) for kind in _DATED}
_LONG: Final = "a bigint that a double may not hold"
_NUMBERS: Final = ("bigint", _LONG, _HUGE)


def _either(known: Shape, new: Shape) -> Shape:
    """Return what holds both."""
    match known, new:
        case (None, other) | (other, None):
            return other
        case _List(one), _List(two):
            return _List(_either(one, two))
        case _Object(ones), _Object(twos):
            return _Object(_each_either(ones, twos))
        case str(), str():
            if {known, new} <= set(_NUMBERS):
                return max(known, new, key=_NUMBERS.index)
            return known if known == new else "double" if {known, new} == {"bigint", "double"} else "string"
    return "string"


def _each_either(ones: Mapping[str, Shape], twos: Mapping[str, Shape]) -> dict[str, Shape]:
    return {name: _either(ones.get(name), twos.get(name)) for name in {**ones, **twos}}


def _text(shape: Shape) -> str:
    match shape:
        case str():
            return "bigint" if shape == _LONG else shape
        case _List(element):
            return f"array<{_text(element)}>"
        case _Object(fields):
            return struct_text([(name, _text(each)) for name, each in fields.items()]) or "string"
    return "string"
