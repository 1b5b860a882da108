"""The settings of a project, as typed values from YAML: where its location is, and how that is opened.

A mistake in the YAML is one sentence that names the key or the line.  The settings are all that is needed to ask a
location, so this module imports nothing that understands SQL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlparse

import msgspec
import yaml

from strandline.controller.location.config import (
    CACHE_BYTES_DEFAULT,
    DEPLOYMENT_DEFAULT,
    FROM_MAVEN,
    KEEP_HISTORY_DEFAULT,
    TICK_MS_DEFAULT,
    path_of,
    refuse_no_interval,
)
from strandline.errors import ConfigError, DefinitionError, Position
from strandline.options import file_text, resolve_reference

if TYPE_CHECKING:
    from strandline.controller.language.statements import Create


Scalar: TypeAlias = str | int | float | bool
T = TypeVar("T")


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
        raise ValueError(f"{error}{_meant(str(error), kind)}{_where(str(error), places(text))}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def places(text: str) -> dict[str, Position]:
    r"""Return where each key of YAML stands, and each entry of a list, by its path.

    >>> sorted(places("into: csv\ncollections: [{collection: s}]"))
    ['.collections', '.collections[0]', '.collections[0].collection', '.into']
    """
    found: dict[str, Position] = {}
    nodes = [("", yaml.compose(text, yaml.SafeLoader))]
    while nodes:
        path, node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            inner = [(f"{path}.{key.value}", key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inner = [(f"{path}[{number}]", value, value) for number, value in enumerate(node.value)]
        else:
            inner = []
        for name, at, value in inner:
            found[name] = Position(at.start_mark.line + 1, at.start_mark.column + 1)
            nodes.append((name, value))
    return found


def _where(error: str, at: Mapping[str, Position]) -> str:
    """Return where that stands which an error of msgspec's is about, if its path is known.

    >>> _where("Object contains unknown field `pth` - at `$.a`", {".a": Position(1, 1), ".a.pth": Position(2, 3)})
    ' (at line 2, column 3)'
    """
    path, unknown = re.search(r"at `\$(.*)`", error), re.search(r"unknown field `(.*?)`", error)
    found = (path[1] if path else "") + (f".{unknown[1]}" if unknown else "")
    return f" (at {at[found]})" if found in at else ""


def _meant(error: str, kind: type) -> str:
    """Return which key may have been meant by one that ``kind`` does not have.

    >>> _meant("Object contains unknown field `nmae`", msgspec.defstruct("Named", [("name", str)]))
    '; did you mean `name`?'
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


SETTINGS_FILE: Final = "strandline.yml"
_PATHS: Final = ("path", "archive")
"""The options that are files or directories of this machine, unless they are URLs."""
_PEM_FILES: Final = ("replica_certificate", "replica_key", "replica_authority", "serve_certificate", "serve_key")
"""The settings that are files of this machine."""


@dataclass(frozen=True, slots=True)
class Defined:
    """One definition and the file (relative to the project) that it stands in.

    ``statement`` is resolved (`files.resolved`); ``original`` is what the file says, where that differs.
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
    """What a materialization may go ``INTO`` by name: a driver, and the options that all its users share.

    ``at``: where each of these stands in the settings.
    """

    driver: str
    options: Mapping[str, str]
    at: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Project:
    """A project as its files say.  ``location`` and ``consensus`` are what `strandline.open` takes, ``config`` too.

    ``consensus`` is not shown: where it is not a reference, it may contain a password.  ``instances``: the addresses of
    replicas, by instance.  ``definitions`` are there once its files were read (`files.load`), and ``unread`` says what
    could not be understood of them.
    """

    root: Path
    location: str
    consensus: str | None = field(repr=False)
    config: Mapping[str, Any]
    tick_ms: int
    endpoints: Mapping[str, Endpoint]
    definitions: tuple[Defined, ...] = ()
    on_error: str = "fail"
    instances: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unread: tuple[DefinitionError, ...] = ()


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
    executors_wait_s: int | None = None
    executors_end_s: int | None = None
    query_limit_s: int | None = None
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
    root = plain(root)
    path = root / SETTINGS_FILE
    if not path.is_file():
        raise ConfigError(
            f"there is no project in {str(root)!r}: {SETTINGS_FILE} is missing; make one with `strandline init`"
        )
    try:
        text = file_text(path)
        said = struct(text, _Settings)
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
    endpoints, at = {}, places(text)
    for name, given in said.endpoints.items():
        options = texts(given)
        if "driver" not in options:
            raise ConfigError(f"{SETTINGS_FILE}: endpoint {name!r} names no driver, such as duckdb")
        own = {key.lower(): at[f".endpoints.{name}.{key}"] for key in given if f".endpoints.{name}.{key}" in at}
        endpoints[name.lower()] = Endpoint(options.pop("driver"), options, own)
    return Project(
        root,
        _location(root, resolve_reference(said.location, base=root)),
        _seen(root, said.consensus),
        {**config, "spark": words(said.spark), "storage": absolute(root, texts(said.storage))},
        said.tick_ms,
        endpoints,
        on_error=said.on_error,
        instances={name: each.replicas for name, each in said.instances.items()},
    )


def shares_location(root: Path, project: Project) -> bool:
    """Return whether there is another project in the directory ``root``, at the location of ``project``."""
    try:
        other = settings(root)
        return (other.location, other.consensus) == (project.location, project.consensus) and (
            not root.samefile(project.root)
        )
    except (ConfigError, OSError):
        return False


def _said(root: Path, given: _Settings) -> dict[str, Any]:
    """Return the settings that most projects leave out, if they are said."""
    found = {
        "lanes": given.lanes,
        "executors_wait_s": given.executors_wait_s,
        "executors_end_s": given.executors_end_s,
        "query_limit_s": given.query_limit_s,
        "serve_at": given.serve_at,
        "console_at": given.console_at,
        "traces": absolute(root, texts(given.traces)) or None,
        "serve_token": _seen(root, given.serve_token),
        **{name: _below(root, getattr(given, name)) for name in _PEM_FILES},
    }
    return {name: value for name, value in found.items() if value is not None}


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
        return plain(root / (path_of(text) if kind.scheme else text)).as_uri()
    except ConfigError as error:
        raise ConfigError(f"{SETTINGS_FILE}: location: {error}") from None


def absolute(root: Path, options: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` with ``path``, ``archive``, and files that hold secrets, as seen from the project."""
    seen = dict(options)
    for key, value in options.items():
        scheme, _, rest = value.partition(":")
        if scheme == "file" and not rest.startswith("//"):
            seen[key] = f"file:{plain(root / rest)}"
        elif key in _PATHS and "://" not in value and scheme != "env":
            seen[key] = str(plain(root / value))
    return seen


def plain(path: Path) -> Path:
    """Return an absolute path without ``..``, as far as it leads to the same place (a link may lead elsewhere).

    >>> str(plain(Path("/p/./a/../in//x")))
    '/p/in/x'
    """
    path = path.absolute()
    if ".." not in path.parts:
        return path
    shorter = os.path.normpath(path)
    return Path(shorter) if os.path.realpath(shorter) == os.path.realpath(path) else path
