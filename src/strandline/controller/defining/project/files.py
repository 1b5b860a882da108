"""A project: a directory that says what an environment is, in SQL and YAML files that live under version control.

    strandline.yml                  location, consensus, endpoints, instances, on_error, and the settings of `Config`
    connections/*.sql|*.yml         CREATE CONNECTION … , or the same as YAML
    instances/*.sql                 CREATE INSTANCE …
    sources/*.sql|*.yml             CREATE SOURCE … and its tables, or a source as YAML
    tables/*.sql|*.yml              CREATE TABLE … , or a table of a source as YAML
    views/*.sql                     CREATE MATERIALIZED VIEW …
    indexes/*.sql                   CREATE INDEX …
    materializations/*.sql|*.yml    CREATE MATERIALIZATION … , or the same as YAML

A file may hold several definitions; the order of definitions and of files means nothing.  Paths are relative to the
project.  An *endpoint* is a driver with options under a name that materializations use; secrets in it are references
(``env:NAME``, ``file:PATH``), resolved where they are used.  ``instances`` define an instance each, as a file would.
``on_error`` applies to sources and materializations that do not state it themselves.

Reading a project touches nothing but its files; `apply.py` makes an environment what its project says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Final

import msgspec

from strandline.algebra.schema import quote
from strandline.controller.defining.project.settings import (
    SETTINGS_FILE,
    Defined,
    Project,
    Scalar,
    absolute,
    places,
    settings,
    struct,
    texts,
)
from strandline.controller.language import statements
from strandline.controller.language.clauses import INCLUDE, INCLUDED, Bind
from strandline.controller.language.instances import (
    CreateIndex,
    CreateInstance,
    refusal_beside,
    refusal_of,
    refusal_of_address,
)
from strandline.controller.language.statements import (
    Create,
    CreateConnection,
    CreateMaterialization,
    CreateSource,
    CreateSourceTable,
    CreateTable,
    CreateView,
)
from strandline.controller.location import on_error
from strandline.errors import ConfigError, DefinitionError
from strandline.options import file_text


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
    """Return what the file ``stem`` of a directory defines.  Raises `ValueError`, one sentence.

    A YAML file says what a statement says:

        connections/pg.yml       to: postgres, options: …
        sources/orders.yml       from: kafka, connection: broker, columns: …, options: …, format: json, include: […]
        tables/accounts.yml      source: bank, reference: public.accounts, columns: …
        materializations/m.yml   into: duckdb, collections: […], options: …

    The name is the file's, unless ``name`` gives another.  Columns are a mapping, or Spark DDL.  ``key``, ``format``
    and the like are options, as the clauses of CREATE SOURCE are (`controller/language/clauses.py`).  A source and a
    materialization may name the ``instance`` that runs them.
    """
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


DIRECTORIES: Final[Mapping[str, type | UnionType]] = {
    "connections": CreateConnection,
    "instances": CreateInstance,
    "tables": CreateTable | CreateSourceTable,
    "sources": CreateSource | CreateSourceTable,
    "views": CreateView,
    "indexes": CreateIndex,
    "materializations": CreateMaterialization,
}
_YAML: Final = (".yml", ".yaml")
_LEFT_ALONE: Final = (".md", ".txt")


def load(root: Path, *, whole: bool = True) -> Project:
    """Return the project in the directory ``root``.

    ``whole``: False leaves out what cannot be understood, and says why (`Project.unread`).

    Raises:
        ConfigError: there is none, or its settings cannot be understood (the key is named).
        DefinitionError: ``whole``, and files cannot be understood (all are named, with the positions); or two files
            define one name.
    """
    project = settings(root)
    root = project.root
    found: dict[str, str] = {}
    unread: list[DefinitionError] = []
    definitions = []
    for each in (*_instances(project), *_definitions(root, unread)):
        name = each.statement.name.lower()
        with _noted(unread):
            if name in found:
                raise DefinitionError(f"{each.file}: {name!r} is defined in {found[name]} too")
            found[name] = each.file
            with in_file(each.file):
                statement = resolved(project, each.statement)
            assert isinstance(statement, Create), "to resolve a definition leaves its kind"
            given = _by_default(project, statement)
            added = () if given is statement else (on_error.OPTION,)
            definitions.append(Defined(each.file, given, each.statement, frozenset(added)))
    if whole and unread:
        raise unread[0] if len(unread) == 1 else DefinitionError("\n".join(map(str, unread)))
    return replace(project, definitions=tuple(definitions), unread=tuple(unread))


@contextmanager
def _noted(unread: list[DefinitionError]) -> Iterator[None]:
    """Take note of a file, or a statement, that cannot be understood."""
    try:
        yield
    except DefinitionError as error:
        unread.append(error)


def resolved(project: Project, statement: statements.Statement, root: Path | None = None) -> statements.Statement:
    """Return ``statement`` with paths made absolute and a named endpoint replaced by its driver and options.

    ``root``: from where paths are seen; None: from the project.

    Raises `DefinitionError` if it gives an option that its endpoint has already.
    """
    root = project.root if root is None else root
    match statement:
        case CreateSource() | CreateConnection():
            return replace(statement, options=absolute(root, statement.options))
        case CreateMaterialization(endpoint=name) if name in project.endpoints:
            endpoint = project.endpoints[name]
            for key in sorted(endpoint.options.keys() & statement.options.keys()):
                raise DefinitionError(
                    f"materialization {statement.name!r}: endpoint {name!r} has option {key!r} already"
                )
            options = absolute(root, {**endpoint.options, **statement.options})
            return replace(statement, endpoint=endpoint.driver, options=options)
        case CreateMaterialization():
            return replace(statement, options=absolute(root, statement.options))
        case _:
            return statement


def _by_default(project: Project, statement: Create) -> Create:
    """Return a definition with the options that the project's settings say where it does not."""
    continues = project.on_error == on_error.OfSource.CONTINUE.value
    match statement:
        case CreateSource() | CreateMaterialization() if continues and on_error.OPTION not in statement.options:
            return replace(statement, options={**statement.options, on_error.OPTION: project.on_error})
        case _:
            return statement


class in_file:  # noqa: N801  # reads like the block that it heads
    """A context in which a `DefinitionError` also says the file.

    >>> with in_file("views/v.sql"):
    ...     raise DefinitionError("no such column")
    Traceback (most recent call last):
        ...
    strandline.errors.DefinitionError: views/v.sql: no such column
    """

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say the file."""
        if isinstance(error, DefinitionError):
            raise DefinitionError(f"{self._file}: {error.message}", error.position) from error


def _instances(project: Project) -> Iterator[Defined]:
    """Yield the statements that the setting stands for.  Raises `ConfigError` as `_instance`."""
    made: dict[str, CreateInstance] = {}
    for name, replicas in project.instances.items():
        statement = _instance(name, replicas)
        if refusal := refusal_beside({other: there.replicas for other, there in made.items()}, statement.replicas):
            raise ConfigError(f"{SETTINGS_FILE}: instance {name!r}: {refusal}")
        made[name] = statement
        yield Defined(SETTINGS_FILE, statement)


def _instance(name: str, given: Mapping[str, str]) -> CreateInstance:
    """Return the statement that a setting stands for.  Raises `ConfigError` where the statement would be refused."""
    replicas: dict[str, str] = {}
    for replica, address in given.items():
        if refusal := refusal_of_address(address) or refusal_of(replicas, replica.lower(), address):
            raise ConfigError(f"{SETTINGS_FILE}: instance {name!r}: {refusal}")
        replicas[replica.lower()] = address
    return CreateInstance(name, replicas)


def _definitions(root: Path, unread: list[DefinitionError]) -> Iterator[Defined]:
    for directory, kind in DIRECTORIES.items():
        for path in sorted((root / directory).glob("*")):
            file = f"{directory}/{path.name}"
            if path.name.startswith(".") or path.suffix in _LEFT_ALONE:
                continue
            with _noted(unread), in_file(file):
                if path.suffix == ".sql":
                    yield from _from_sql(_read(path), file, kind, unread)
                elif path.suffix in _YAML and directory in FORMS:
                    try:
                        found = defined(directory, path.stem, _read(path))
                    except ValueError as error:
                        raise DefinitionError(str(error)) from error
                    yield Defined(file, found)
                else:
                    allowed = ".sql and .yml" if directory in FORMS else ".sql"
                    raise DefinitionError(f"{directory}/ may hold only {allowed} files")


def _from_sql(whole: str, file: str, kind: type | UnionType, unread: list[DefinitionError]) -> Iterator[Defined]:
    for text in statements.placed(whole):
        with _noted(unread), in_file(file):
            statement = statements.parse(text)
            if isinstance(statement, kind):
                assert isinstance(statement, Create), "directories hold definitions"
                yield Defined(file, statement)
            elif isinstance(statement, Create):
                right = next(name for name, each in DIRECTORIES.items() if isinstance(statement, each))
                raise DefinitionError(f"{statement.name!r} belongs in {right}/", statement.at)
            else:
                raise DefinitionError(
                    "a project's files hold definitions (CREATE …); run other statements with `strandline sql`"
                )


def _read(path: Path) -> str:
    try:
        return file_text(path)
    except OSError as error:
        raise DefinitionError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"it is not text in UTF-8 (byte {error.start + 1})") from error
