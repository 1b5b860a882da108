"""A project: a directory that says what an environment is, in files that live under version control.

    strandline.yml                  location, consensus, endpoints, instances, on_error, and the settings of `Config`
    connections/*.sql|*.yml         CREATE CONNECTION … , or the same as YAML
    instances/*.sql                 CREATE INSTANCE …
    sources/*.sql|*.yml             CREATE SOURCE … and its tables, or a source as YAML
    tables/*.sql|*.yml              CREATE TABLE … , or a table of a source as YAML
    views/*.sql                     CREATE MATERIALIZED VIEW …
    indexes/*.sql                   CREATE INDEX …
    materializations/*.sql|*.yml    CREATE MATERIALIZATION … , or the same as YAML

A file may hold several definitions; their order, and that of the files, means nothing.  Paths are relative to the
project.  An *endpoint* is a driver with options under a name that materializations use; secrets in it are references
(``env:NAME``, ``file:PATH``), resolved where they are used.  ``instances`` define an instance each, as a file would.
``on_error`` is what sources and materializations are created with that do not say it themselves.

Reading a project touches nothing but its files; `apply.py` makes an environment what its project says.

Long because what a project says is one subject: its settings, its files, and what paths in them mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal
from urllib.parse import urlparse

import msgspec

from strandline.controller.defining.yaml_forms import FORMS, Scalar, defined, struct, texts, words
from strandline.controller.language import statements
from strandline.controller.language.indexes import CreateIndex
from strandline.controller.language.instances import CreateInstance, refusal_beside, refusal_of, refusal_of_address
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
from strandline.controller.location.config import (
    CACHE_BYTES_DEFAULT,
    DEPLOYMENT_DEFAULT,
    FROM_MAVEN,
    KEEP_HISTORY_DEFAULT,
    TICK_MS_DEFAULT,
)
from strandline.controller.location.interval import refuse_no_interval
from strandline.controller.location.paths import path_of
from strandline.errors import ConfigError, DefinitionError
from strandline.options import resolve_reference

SETTINGS_FILE: Final = "strandline.yml"
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
_PATHS: Final = ("path", "archive")
"""The options that are files or directories of this machine, unless they are URLs."""
_PEM_FILES: Final = ("replica_certificate", "replica_key", "replica_authority", "serve_certificate", "serve_key")
"""The settings that are files of this machine."""
_LEFT_ALONE: Final = (".md", ".txt")


@dataclass(frozen=True, slots=True)
class Defined:
    """One definition and the file (relative to the project) that it stands in.

    ``statement`` is resolved (`Project.resolved`); ``original`` is what the file says, where that differs.
    ``by_default``: the options that the file does not say, and the project's settings do, for what is created now.
    """

    file: str
    statement: Create
    original: Create | None = None
    by_default: frozenset[str] = frozenset()

    @property
    def written(self) -> Create:
        """The definition as the file says it."""
        return self.statement if self.original is None else self.original


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
    on_error: str = on_error.OfSource.FAIL.value

    def resolved(self, statement: statements.Statement, root: Path | None = None) -> statements.Statement:
        """Return ``statement`` with paths made absolute and a named endpoint replaced by its driver and options.

        ``root``: from where paths are seen; None: from the project.

        Raises `DefinitionError` if it gives an option that its endpoint has already.
        """
        root = self.root if root is None else root
        match statement:
            case CreateSource() | CreateConnection():
                return replace(statement, options=absolute(root, statement.options))
            case CreateMaterialization(endpoint=name) if name in self.endpoints:
                endpoint = self.endpoints[name]
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


def load(root: Path) -> Project:
    """Return the project in the directory ``root``.

    Raises:
        ConfigError: there is none, or its settings cannot be understood (the key is named).
        DefinitionError: a file cannot be understood (it is named, with the position); two files define one name.
    """
    root = root.absolute()
    project = settings(root)
    found: dict[str, str] = {}
    definitions = []
    for each in (*project.definitions, *_definitions(root)):
        name = each.statement.name.lower()
        if name in found:
            raise DefinitionError(f"{each.file}: {name!r} is defined in {found[name]} too")
        found[name] = each.file
        with in_file(each.file):
            statement = project.resolved(each.statement)
        assert isinstance(statement, Create), "to resolve a definition leaves its kind"
        whole = _by_default(project, statement)
        added = () if whole is statement else (on_error.OPTION,)
        definitions.append(Defined(each.file, whole, each.statement, frozenset(added)))
    return replace(project, definitions=tuple(definitions))


def shares_location(root: Path, project: Project) -> bool:
    """Return whether there is another project in the directory ``root``, at the location of ``project``."""
    try:
        other = settings(root)
        return (other.location, other.consensus) == (project.location, project.consensus) and (
            not root.samefile(project.root)
        )
    except (ConfigError, DefinitionError, OSError):
        return False


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


# ---- strandline.yml --------------------------------------------------------------------------------------------------


class _Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replicas: dict[str, str] = {}


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    location: str
    consensus: str | None = None
    deployment: str = DEPLOYMENT_DEFAULT
    reentrant: bool = True
    tick_ms: int = TICK_MS_DEFAULT
    keep_history: str = KEEP_HISTORY_DEFAULT
    cache: str | None = None
    cache_bytes: int = CACHE_BYTES_DEFAULT
    spark: dict[str, Scalar] = {}
    storage: dict[str, Scalar] = {}
    kafka_jars: str | None = None
    functions: dict[str, str] = {}
    endpoints: dict[str, dict[str, Scalar]] = {}
    instances: dict[str, _Instance] = {}
    lanes: int | None = None
    replica_token: str | None = None
    replica_certificate: str | None = None
    replica_key: str | None = None
    replica_authority: str | None = None
    serve_at: str | None = None
    serve_token: str | None = None
    serve_certificate: str | None = None
    serve_key: str | None = None
    console_at: str | None = None
    traces: dict[str, Scalar] = {}
    on_error: Literal["fail", "continue"] = "fail"

    def __post_init__(self) -> None:
        refuse_no_interval(self.keep_history)


def settings(root: Path) -> Project:
    """Return the project in the directory ``root`` as its settings say, without what other files define.

    That is enough to ask its location.  Raises `ConfigError` as `load`.
    """
    root = root.absolute()
    path = root / SETTINGS_FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no project in {str(root)!r}: {SETTINGS_FILE} is missing; make one with `strandline init`"
        )
    try:
        said = struct(path.read_text(), _Settings)
    except OSError as error:
        raise ConfigError(f"{SETTINGS_FILE} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{SETTINGS_FILE}: {error}") from error
    config = {
        "deployment": said.deployment,
        "reentrant": said.reentrant,
        "tick_ms": said.tick_ms,
        "keep_history": said.keep_history,
        "cache": _below(root, said.cache),
        "cache_bytes": said.cache_bytes,
        "kafka_jars": _jars(root, said.kafka_jars),
        "functions": {name: _function(root, text) for name, text in said.functions.items()},
        "replica_token": _seen(root, said.replica_token),
        **_said(root, said),
    }
    endpoints = {}
    for name, given in said.endpoints.items():
        options = texts(given)
        if "driver" not in options:
            raise ConfigError(f"{SETTINGS_FILE}: endpoint {name!r} names no driver, such as duckdb")
        endpoints[name.lower()] = Endpoint(options.pop("driver"), options)
    return Project(
        root,
        _location(root, resolve_reference(said.location, base=root)),
        _seen(root, said.consensus),
        {**config, "spark": words(said.spark), "storage": absolute(root, texts(said.storage))},
        said.tick_ms,
        endpoints,
        tuple(Defined(SETTINGS_FILE, statement) for statement in _instances(said.instances)),
        said.on_error,
    )


def _said(root: Path, settings: _Settings) -> dict[str, Any]:
    """Return the settings that most projects leave out, if they are said."""
    found = {
        "lanes": settings.lanes,
        "serve_at": settings.serve_at,
        "console_at": settings.console_at,
        "traces": absolute(root, texts(settings.traces)) or None,
        "serve_token": _seen(root, settings.serve_token),
        **{name: _below(root, getattr(settings, name)) for name in _PEM_FILES},
    }
    return {name: value for name, value in found.items() if value is not None}


def _instances(given: dict[str, _Instance]) -> list[CreateInstance]:
    """Return the statements that the setting stands for.  Raises `ConfigError` as `_instance`."""
    made: dict[str, CreateInstance] = {}
    for name, each in given.items():
        statement = _instance(name, each)
        if refusal := refusal_beside({other: there.replicas for other, there in made.items()}, statement.replicas):
            raise ConfigError(f"{SETTINGS_FILE}: instance {name!r}: {refusal}")
        made[name] = statement
    return list(made.values())


def _instance(name: str, given: _Instance) -> CreateInstance:
    """Return the statement that a setting stands for.  Raises `ConfigError` where the statement would be refused."""
    replicas: dict[str, str] = {}
    for replica, address in given.replicas.items():
        if refusal := refusal_of_address(address) or refusal_of(replicas, replica.lower(), address):
            raise ConfigError(f"{SETTINGS_FILE}: instance {name!r}: {refusal}")
        replicas[replica.lower()] = address
    return CreateInstance(name, replicas)


def _seen(root: Path, text: str | None) -> str | None:
    """Return a setting that may refer to a file, as seen from the project."""
    return None if text is None else absolute(root, {"": text})[""]


def _below(root: Path, text: str | None) -> str | None:
    """Return a file or directory that a setting names, as seen from the project."""
    return None if text is None else str(root.absolute() / text)


def _jars(root: Path, text: str | None) -> str | None:
    """Return where jars come from, as the configuration takes it; a directory is one below the project."""
    return text if text in {None, FROM_MAVEN} else str(root.absolute() / str(text))


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
                elif path.suffix in _YAML and directory in FORMS:
                    try:
                        yield Defined(file, defined(directory, path.stem, _read(path)))
                    except ValueError as error:
                        raise DefinitionError(str(error)) from error
                else:
                    allowed = ".sql and .yml" if directory in FORMS else ".sql"
                    raise DefinitionError(f"{directory}/ may hold only {allowed} files")


def _from_sql(path: Path, file: str, kind: type | UnionType) -> Iterator[Defined]:
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


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise DefinitionError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"it is not text in UTF-8 (byte {error.start + 1})") from error


def absolute(root: Path, options: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` with ``path``, ``archive``, and files that hold secrets, as seen from the project."""
    seen = dict(options)
    for key, value in options.items():
        scheme, _, rest = value.partition(":")
        if scheme == "file" and not rest.startswith("//"):
            seen[key] = f"file:{root / rest}"
        elif key in _PATHS and "://" not in value and scheme != "env":
            seen[key] = str(root / value)
    return seen
