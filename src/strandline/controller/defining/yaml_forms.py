"""YAML forms: a connection, a source, a source's table and a materialization as files that say what a statement says.

    connections/pg.yml       to: postgres, options: …
    sources/orders.yml       from: kafka, connection: broker, columns: …, options: …, format: json, include: [offset]
    tables/accounts.yml      source: bank, reference: public.accounts, columns: …
    materializations/m.yml   into: duckdb, collections: […], options: …

The name is the file's, unless ``name`` says another.  Columns are a mapping, or Spark DDL.  ``key``, ``format`` and the
like are options, as the clauses of CREATE SOURCE are (`controller/language/clauses.py`).  A source and a
materialization may say by which ``instance`` they are run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import yaml

from strandline.algebra.schema import quote
from strandline.controller.language.clauses import INCLUDE, INCLUDED
from strandline.controller.language.statements import (
    Bind,
    Create,
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
)

Scalar: TypeAlias = str | int | float | bool
T = TypeVar("T")


class _Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    columns: dict[str, str] | str = ""

    @property
    def ddl(self) -> str:
        """The columns as Spark reads them."""
        if isinstance(self.columns, str):
            return self.columns
        return ", ".join(f"{quote(name)} {kind}" for name, kind in self.columns.items())


class _Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: str
    options: dict[str, Scalar] = {}
    name: str | None = None

    def statement(self, stem: str) -> Create:
        return CreateConnection(self.name or stem, self.to.lower(), texts(self.options))


class _Source(_Columns, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    from_: str | None = None
    using: str | None = None
    options: dict[str, Scalar] = {}
    connection: str | None = None
    format: str | None = None
    key_format: str | None = None
    key: str | tuple[str, ...] | None = None
    envelope: str | None = None
    include: dict[str, str] | tuple[str, ...] = ()
    name: str | None = None
    keep_history: str | None = None
    instance: str | None = None

    def statement(self, stem: str) -> Create:
        if self.from_ and self.using:
            raise ValueError("`from` and `using` name one connector both; leave one out")
        name, connector = self.name or stem, (self.from_ or self.using or "files").lower()
        given = texts(self.options)
        for option, text in self._clauses().items():
            if option in given:
                raise ValueError(f"option {option!r} is given twice")
            given[option] = text
        instance = self.instance or ""
        return CreateSource(name, self.ddl, connector, given, instance=instance, keep_history=self.keep_history)

    def _clauses(self) -> dict[str, str]:
        """Return what the keys say that are options."""
        include = self.include if isinstance(self.include, dict) else {each: each for each in self.include}
        for each in include:
            if each.lower() not in INCLUDED:
                raise ValueError(f"include: there is no {each!r}; there is {', '.join(INCLUDED)}")
        key = self.key if isinstance(self.key, str | None) else ",".join(self.key)
        lower = {
            name: None if text is None else text.lower()
            for name, text in (("format", self.format), ("key_format", self.key_format), ("envelope", self.envelope))
        }
        said = {"connection": self.connection, "key": key, **lower}
        columns = {f"{INCLUDE}{each.lower()}": name for each, name in include.items()}
        return {name: text for name, text in said.items() if text is not None} | columns


class _SourceTable(_Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    reference: str
    options: dict[str, Scalar] = {}
    name: str | None = None
    keep_history: str | None = None

    def statement(self, stem: str) -> Create:
        if not self.columns:
            raise ValueError("columns is missing")
        return CreateSourceTable(
            self.name or stem,
            self.ddl,
            self.source,
            self.reference,
            texts(self.options),
            keep_history=self.keep_history,
        )


class _Bind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    collection: str
    table: str | None = None
    key: tuple[str, ...] = ()


class _Materialization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    into: str
    collections: tuple[_Bind | str, ...]
    options: dict[str, Scalar] = {}
    name: str | None = None
    instance: str | None = None

    def statement(self, stem: str) -> Create:
        if not self.collections:
            raise ValueError("collections is empty: a materialization has at least one")
        bound = [_Bind(each) if isinstance(each, str) else each for each in self.collections]
        bindings = tuple(Bind(each.collection, each.table or each.collection, each.key) for each in bound)
        return CreateMaterialization(
            self.name or stem, self.into.lower(), texts(self.options), bindings, instance=self.instance or ""
        )


FORMS: Final[Mapping[str, type[_Connection | _Source | _SourceTable | _Materialization]]] = {
    "connections": _Connection,
    "sources": _Source,
    "tables": _SourceTable,
    "materializations": _Materialization,
}
"""What a YAML file of a directory says."""


def defined(directory: str, stem: str, text: str) -> Create:
    """Return what the file ``stem`` of a directory defines.  Raises `ValueError`, one sentence."""
    return struct(text, FORMS[directory]).statement(stem)


def _loaded(text: str) -> Any:
    """Return YAML as plain data.  Raises what the library raises; also if a key is there twice."""
    nodes = [yaml.compose(text, yaml.SafeLoader)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else None
                if name is not None and name in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {name!r} is there twice", problem_mark=key.start_mark)
                seen.add(name)
                nodes.append(value)
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
    return yaml.safe_load(text)


def struct(text: str, kind: type[T]) -> T:
    """Return YAML as a value of ``kind``.  Raises `ValueError`, one sentence that names the key or the line."""
    try:
        return msgspec.convert(_loaded(text) or {}, kind)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" (at line {mark.line + 1}, column {mark.column + 1})"
        raise ValueError(f"this is not YAML: {error.problem}{where}") from error
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}{_meant(str(error), kind)}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _meant(error: str, kind: type) -> str:
    """Return which key may have been meant by one that ``kind`` does not have.

    >>> _meant("Object contains unknown field `refrence`", _SourceTable)
    '; did you mean `reference`?'
    """
    found = re.fullmatch(r"Object contains unknown field `(.*)`", error)
    close = get_close_matches(found[1], [f.encode_name for f in msgspec.structs.fields(kind)], 1) if found else []
    return f"; did you mean `{close[0]}`?" if close else ""


def texts(given: Mapping[str, Scalar]) -> dict[str, str]:
    """Return options as SQL would have them: their names are ours, and in lower case."""
    return {key.lower(): value for key, value in words(given).items()}


def words(settings: Mapping[str, Scalar]) -> dict[str, str]:
    """Return settings whose names another system defines (Spark's names are case-sensitive)."""
    return {key: _word(value) for key, value in settings.items()}


def _word(value: Scalar) -> str:
    """Return a YAML scalar as the word that SQL would have.

    >>> [_word(value) for value in (True, 3, "NA")]
    ['true', '3', 'NA']
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
