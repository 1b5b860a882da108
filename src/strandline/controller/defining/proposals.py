"""Proposals: the statements that would read what was found upstream, for a person to look at, change and run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strandline.controller.introspection.definition import literal
from strandline.options import holds_secret
from strandline.sources.kinds import Discovered


@dataclass(frozen=True, slots=True)
class Upstream:
    """What was asked: a connector, the options that a source needs to get there, and whether it has many tables."""

    connector: str
    options: Mapping[str, str]
    tables: bool


def proposed(upstream: Upstream, found: Sequence[Discovered], source: str) -> list[str]:
    """Return statements that read all that was ``found``; ``source``: the name of a source of many tables.

    What cannot be read has a comment that says why.

    >>> from strandline.algebra.schema import Column, Schema
    >>> found = [Discovered("public.accounts", Schema((Column("id", "int"),)))]
    >>> for text in proposed(Upstream("postgres", {"connection": "pg"}, tables=True), found, "bank"):
    ...     print(text)
    CREATE SOURCE bank FROM postgres (connection = 'pg');
    CREATE TABLE accounts (`id` int)
    FROM SOURCE bank (reference = 'public.accounts');
    >>> print(*proposed(Upstream("iceberg", {}, tables=False), [Discovered("a.b", Schema(()), {}, "it is gone")], ""))
    -- a.b: it is gone
    """
    names = list(_names([each.name for each in found], {source.lower()} if upstream.tables else ()))
    upstream, notes = _without_secrets(upstream)
    texts = [_proposal(name, upstream, source, each) for name, each in zip(names, found, strict=True)]
    if upstream.tables:
        texts = [f"CREATE SOURCE {source} FROM {upstream.connector} {_listed(upstream.options)};", *texts]
    return ["".join(f"-- {note}\n" for note in notes) + texts[0], *texts[1:]] if texts else []


def _without_secrets(upstream: Upstream) -> tuple[Upstream, list[str]]:
    """Return what was asked with a reference in place of each secret, and what to do before the statements are run.

    >>> asked, notes = _without_secrets(Upstream("kafka", {"user": "me", "password": "hunter2"}, tables=False))
    >>> asked.options["password"], notes
    ('env:KAFKA_PASSWORD', ['password: put it into the environment variable KAFKA_PASSWORD'])
    """
    variables = {
        name: re.sub(r"[^A-Z0-9]+", "_", f"{upstream.connector}_{name}".upper())
        for name, text in upstream.options.items()
        if holds_secret(name, text)
    }
    given = {name: f"env:{variables[name]}" if name in variables else text for name, text in upstream.options.items()}
    notes = [f"{name}: put it into the environment variable {variable}" for name, variable in variables.items()]
    return replace(upstream, options=given), notes


def _proposal(name: str, upstream: Upstream, source: str, found: Discovered) -> str:
    if not found.columns.columns:
        return f"-- {found.name}: {' '.join(found.note.split())}"
    return _table(name, source, found) if upstream.tables else _source(name, upstream, found)


def _source(name: str, upstream: Upstream, found: Discovered) -> str:
    options = _listed({**upstream.options, **found.options})
    return f"{_said(found)}CREATE SOURCE {name} ({found.columns.ddl})\nFROM {upstream.connector} {options};"


def _table(name: str, source: str, found: Discovered) -> str:
    options = _listed({"reference": found.name, **found.options})
    return f"{_said(found)}CREATE TABLE {name} ({found.columns.ddl})\nFROM SOURCE {source} {options};"


def _said(found: Discovered) -> str:
    return f"-- {' '.join(found.note.split())}\n" if found.note else ""


def _listed(options: Mapping[str, str]) -> str:
    return f"({', '.join(f'{name} = {literal(text)}' for name, text in options.items())})"


def _names(found: Iterable[str], taken: Iterable[str]) -> Iterator[str]:
    """Yield a name of letters, digits and ``_`` for each, the last part of what it is called if that is free."""
    used = set(taken)
    for name in found:
        parts = [_plain(part) for part in re.split(r"[./]", name) if part] or ["source"]
        tries = [_plain("_".join(parts[n:])) for n in range(len(parts) - 1, -1, -1)]
        tries += [f"{tries[-1]}_{number}" for number in range(2, len(used) + 3)]
        free = next(each for each in tries if each not in used)
        used.add(free)
        yield free


def _plain(text: str) -> str:
    """Return a word that is a name anywhere.

    >>> _plain("Order Lines"), _plain("2024-01"), _plain("__x")
    ('order_lines', 'n2024_01', 'x')
    """
    word = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "unnamed"
    return f"n{word}" if word[0].isdigit() else word
