"""A project: a directory that says what an environment is, in files that live under version control.

    strandline.yml                  location, consensus, deployment, reentrant, tick_ms, keep_history, spark, endpoints
    tables/*.sql                    CREATE TABLE …
    sources/*.sql|*.yml             CREATE SOURCE … , or the same as YAML
    views/*.sql                     CREATE MATERIALIZED VIEW …
    materializations/*.sql|*.yml    CREATE MATERIALIZATION … , or the same as YAML

A file may hold several definitions; their order, and that of the files, means nothing.  Paths are relative to the
project.  An *endpoint* is a driver with options under a name that materializations use; secrets in it are references
(``env:NAME``, ``file:PATH``), resolved where they are used.

Reading a project touches nothing but its files; `apply.py` makes an environment what its project says.

Long because the shapes of a project's files and their errors are one format.

Source: design page "environment" (a project).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlparse

import msgspec
import yaml

from strandline.algebra.schema import quote
from strandline.controller.language import statements
from strandline.controller.language.statements import (
    Bind,
    Create,
    CreateMaterialization,
    CreateSource,
    CreateTable,
    CreateView,
)
from strandline.controller.location.config import (
    CACHE_BYTES_DEFAULT,
    DEPLOYMENT_DEFAULT,
    KEEP_HISTORY_DEFAULT,
    TICK_MS_DEFAULT,
)
from strandline.controller.location.interval import refuse_no_interval
from strandline.controller.location.paths import path_of
from strandline.errors import ConfigError, DefinitionError
from strandline.options import resolve_reference

SETTINGS_FILE: Final = "strandline.yml"
DIRECTORIES: Final[Mapping[str, type]] = {
    "tables": CreateTable,
    "sources": CreateSource,
    "views": CreateView,
    "materializations": CreateMaterialization,
}
_IN_YAML: Final = ("sources", "materializations")
_YAML: Final = (".yml", ".yaml")
_LEFT_ALONE: Final = (".md", ".txt")

_Scalar: TypeAlias = str | int | float | bool
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Defined:
    """One definition and the file (relative to the project) that it stands in."""

    file: str
    statement: Create


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a materialization may go ``INTO`` by name: a driver, and the options that all its users share."""

    driver: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Project:
    """A project as its files say.  ``location`` and ``consensus`` are what `strandline.open` takes, ``config`` too.

    ``consensus`` is not shown: where it is not a reference, it may contain a password.
    """

    root: Path
    location: str
    consensus: str | None = field(repr=False)
    config: Mapping[str, Any]
    tick_ms: int
    endpoints: Mapping[str, Endpoint]
    definitions: tuple[Defined, ...] = ()

    def resolved(self, statement: statements.Statement) -> statements.Statement:
        """Return ``statement`` with paths made absolute and a named endpoint replaced by its driver and options.

        Raises `DefinitionError` if it gives an option that its endpoint has already.
        """
        match statement:
            case CreateSource():
                return replace(statement, options=_absolute(self.root, statement.options))
            case CreateMaterialization(endpoint=name) if name in self.endpoints:
                endpoint = self.endpoints[name]
                for key in sorted(endpoint.options.keys() & statement.options.keys()):
                    raise DefinitionError(
                        f"materialization {statement.name!r}: endpoint {name!r} has option {key!r} already"
                    )
                options = _absolute(self.root, {**endpoint.options, **statement.options})
                return replace(statement, endpoint=endpoint.driver, options=options)
            case CreateMaterialization():
                return replace(statement, options=_absolute(self.root, statement.options))
            case _:
                return statement


def load(root: Path) -> Project:
    """Return the project in the directory ``root``.

    Raises:
        ConfigError: there is none, or its settings cannot be understood (the key is named).
        DefinitionError: a file cannot be understood (it is named, with the position); two files define one name.
    """
    root = root.absolute()
    project = _settings(root)
    found: dict[str, str] = {}
    definitions = []
    for defined in _definitions(root):
        name = defined.statement.name.lower()
        if name in found:
            raise DefinitionError(f"{defined.file}: {name!r} is defined in {found[name]} too")
        found[name] = defined.file
        with in_file(defined.file):
            statement = project.resolved(defined.statement)
        assert isinstance(statement, Create), "to resolve a definition leaves its kind"
        definitions.append(Defined(defined.file, statement))
    return replace(project, definitions=tuple(definitions))


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


# ---- strandline.yml --------------------------------------------------------------------------------------------------


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    location: str
    consensus: str | None = None
    deployment: str = DEPLOYMENT_DEFAULT
    reentrant: bool = True
    tick_ms: int = TICK_MS_DEFAULT
    keep_history: str = KEEP_HISTORY_DEFAULT
    cache: str | None = None
    cache_bytes: int = CACHE_BYTES_DEFAULT
    spark: dict[str, _Scalar] = {}
    storage: dict[str, _Scalar] = {}
    functions: dict[str, str] = {}
    endpoints: dict[str, dict[str, _Scalar]] = {}

    def __post_init__(self) -> None:
        refuse_no_interval(self.keep_history)


def _settings(root: Path) -> Project:
    path = root / SETTINGS_FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no project in {str(root)!r}: {SETTINGS_FILE} is missing; make one with `strandline init`"
        )
    try:
        settings = _struct(path.read_text(), _Settings)
    except OSError as error:
        raise ConfigError(f"{SETTINGS_FILE} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{SETTINGS_FILE}: {error}") from error
    config = {
        "deployment": settings.deployment,
        "reentrant": settings.reentrant,
        "tick_ms": settings.tick_ms,
        "keep_history": settings.keep_history,
        "cache": None if settings.cache is None else str(root.absolute() / settings.cache),
        "cache_bytes": settings.cache_bytes,
        "functions": {name: _function(root, text) for name, text in settings.functions.items()},
    }
    endpoints = {}
    for name, given in settings.endpoints.items():
        options = _options(given)
        if "driver" not in options:
            raise ConfigError(f"{SETTINGS_FILE}: endpoint {name!r} names no driver, such as duckdb")
        endpoints[name.lower()] = Endpoint(options.pop("driver"), options)
    return Project(
        root,
        _location(root, resolve_reference(settings.location, base=root)),
        None if settings.consensus is None else _absolute(root, {"": settings.consensus})[""],
        {**config, "spark": _words(settings.spark), "storage": _absolute(root, _options(settings.storage))},
        settings.tick_ms,
        endpoints,
    )


def _function(root: Path, text: str) -> str:
    """Return where a function is, as the configuration takes it; a file is one below the project."""
    where, _, name = text.rpartition(":")
    return f"{root.absolute() / where}:{name}" if where.endswith(".py") else text


def _location(root: Path, text: str) -> str:
    """Return a location as `strandline.open` takes it; a bare path is one below the project.

    >>> _location(Path("/p"), "data"), _location(Path("/p"), "memory://")
    ('file:///p/data', 'memory://')
    """
    kind = urlparse(text)
    if kind.scheme and kind.scheme != "file":
        return text
    try:
        return (root / (path_of(text) if kind.scheme else text)).as_uri()
    except ConfigError as error:
        raise ConfigError(f"{SETTINGS_FILE}: location: {error}") from None


# ---- definitions -----------------------------------------------------------------------------------------------------


def _definitions(root: Path) -> Iterator[Defined]:
    for directory, kind in DIRECTORIES.items():
        for path in sorted((root / directory).glob("*")):
            file = f"{directory}/{path.name}"
            if path.name.startswith(".") or path.suffix in _LEFT_ALONE:
                continue
            with in_file(file):
                if path.suffix == ".sql":
                    yield from _from_sql(path, file, kind)
                elif path.suffix in _YAML and directory in _IN_YAML:
                    yield Defined(file, _from_yaml(path, directory))
                else:
                    allowed = ".sql and .yml" if directory in _IN_YAML else ".sql"
                    raise DefinitionError(f"{directory}/ may hold only {allowed} files")


def _from_sql(path: Path, file: str, kind: type) -> Iterator[Defined]:
    for text in statements.placed(_read(path)):
        statement = statements.parse(text)
        if isinstance(statement, kind):
            assert isinstance(statement, Create), "directories hold definitions"
            yield Defined(file, statement)
        elif isinstance(statement, Create):
            right = next(name for name, each in DIRECTORIES.items() if isinstance(statement, each))
            raise DefinitionError(f"{statement.name!r} belongs in {right}/")
        else:
            raise DefinitionError(
                "a project's files hold definitions (CREATE …); run other statements with `strandline sql`"
            )


class _SourceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: dict[str, str] | str
    options: dict[str, _Scalar] = {}
    name: str | None = None
    using: str = "files"
    keep_history: str | None = None


class _BindFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    collection: str
    table: str | None = None
    key: tuple[str, ...] = ()


class _MaterializationFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    into: str
    collections: tuple[_BindFile | str, ...]
    options: dict[str, _Scalar] = {}
    name: str | None = None


def _from_yaml(path: Path, directory: str) -> Create:
    try:
        if directory == "sources":
            source = _struct(_read(path), _SourceFile)
            columns = source.columns
            if not isinstance(columns, str):
                columns = ", ".join(f"{quote(name)} {kind}" for name, kind in columns.items())
            options = _options(source.options)
            name, using = source.name or path.stem, source.using.lower()
            return CreateSource(name, columns, using, options, keep_history=source.keep_history)
        task = _struct(_read(path), _MaterializationFile)
    except ValueError as error:
        raise DefinitionError(str(error)) from error
    if not task.collections:
        raise DefinitionError("collections is empty: a materialization has at least one")
    bound = [_BindFile(each) if isinstance(each, str) else each for each in task.collections]
    bindings = tuple(Bind(each.collection, each.table or each.collection, each.key) for each in bound)
    return CreateMaterialization(task.name or path.stem, task.into.lower(), _options(task.options), bindings)


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


def _struct(text: str, kind: type[T]) -> T:
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

    >>> _meant("Object contains unknown field `locaton`", _Settings)
    '; did you mean `location`?'
    """
    found = re.fullmatch(r"Object contains unknown field `(.*)`", error)
    close = get_close_matches(found[1], [f.encode_name for f in msgspec.structs.fields(kind)], 1) if found else []
    return f"; did you mean `{close[0]}`?" if close else ""


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise DefinitionError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"it is not text in UTF-8 (byte {error.start + 1})") from error


def _options(given: Mapping[str, _Scalar]) -> dict[str, str]:
    """Return options as SQL would have them: their names are ours, and in lower case."""
    return {key.lower(): value for key, value in _words(given).items()}


def _words(settings: Mapping[str, _Scalar]) -> dict[str, str]:
    """Return settings whose names another system defines (Spark's names are case-sensitive)."""
    return {key: _word(value) for key, value in settings.items()}


def _word(value: _Scalar) -> str:
    """Return a YAML scalar as the word that SQL would have.

    >>> [_word(value) for value in (True, 3, "NA")]
    ['true', '3', 'NA']
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _absolute(root: Path, options: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` with ``path``, and files that hold secrets, as seen from the project."""
    seen = dict(options)
    for key, value in options.items():
        scheme, _, rest = value.partition(":")
        if scheme == "file" and not rest.startswith("//"):
            seen[key] = f"file:{root / rest}"
        elif key == "path" and "://" not in value and scheme != "env":
            seen[key] = str(root / value)
    return seen
