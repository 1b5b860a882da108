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

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from strandline.algebra.schema import quote
from strandline.controller.defining.project.yaml_text import Scalar, places, struct, texts
from strandline.controller.language.clauses import INCLUDE, INCLUDED, Bind
from strandline.controller.language.statements import (
    Create,
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
)


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
    statement = struct(text, FORMS[directory]).statement(stem)
    at = places(text)
    options = {path.removeprefix(".options.").lower(): place for path, place in at.items() if ".options." in path}
    keys = {path.removeprefix("."): place for path, place in at.items() if path.count(".") == 1}
    if isinstance(statement, CreateMaterialization):
        bound = [replace(bind, at=at.get(f".collections[{number}]")) for number, bind in enumerate(statement.bindings)]
        statement = replace(statement, bindings=tuple(bound))
    if isinstance(statement, CreateConnection | CreateSource | CreateSourceTable | CreateMaterialization):
        return replace(statement, options_at=keys | options)
    return statement
