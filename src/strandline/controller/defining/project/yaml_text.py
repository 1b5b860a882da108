"""YAML as values: of which type each is said, and a mistake is one sentence that names the key or the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, TypeVar

import msgspec
import yaml

from strandline.errors import Position

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
