"""The problems that the package declares, collected, and the page of them: docs/reference/problems.md."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import strandline
from strandline.errors import is_wait
from strandline.problem import Problem, Stopped

PACKAGE: Final = Path(str(strandline.__file__)).parent
GENERATED: Final = "<!-- Written by tools/reference.py from the code: change that, and run it again. -->"
_DECLARED: Final = re.compile(r"^[A-Z_]+: Final = Problem\($|^[A-Z_]+: Final = Problem\(.*\)$", re.MULTILINE)
_HOLE: Final = re.compile(r"\{(\w+)[^}]*\}")
_OPTIONAL: Final = re.compile(r"(?<=[\w}])\{\w+\}")
_HEAD: Final = """
What `strandline status` says of an item that does not go on, of one that waits, and of one that goes on though there is
something to know. A sentence of `status` is the text of a row here, with names for what stands in angle brackets; what
ends a problem stands in the sentence behind it. An item that has a problem stops alone: all that does not read it goes
on.

Besides these, whatever a store, an upstream, an endpoint or Spark answers may be a problem, in its own words: a server
that is away, a full disk, a password that an upstream refuses. Mend it there; each tick tries again.
"""
_SECTIONS: Final = (
    ("Problems", "They stop an item until one of the ways out is taken."),
    ("Waits", "They end by themselves."),
    ("Notices", "They stop no item. `status` lists some of them as problems, since the operator has to act."),
    ("Refusals", "A command is refused so; `status` says none of them."),
)


@cache
def declared() -> dict[str, Problem]:
    """Return each problem that a module of the package declares, by its module and its name there."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not _DECLARED.search(path.read_text()):
            continue
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for constant, value in vars(importlib.import_module(name)).items():
            if isinstance(value, Problem) and re.search(
                rf"^{constant}: Final = Problem\(", path.read_text(), re.MULTILINE
            ):
                found[f"{name}.{constant}"] = value
    return found


def kind(problem: Problem) -> str:
    """Return the section that a problem stands in."""
    if is_wait(problem.cause):
        return "Waits"
    if problem.stops is Stopped.COMMAND:
        return "Refusals"
    return "Notices" if problem.stops is Stopped.NOTHING else "Problems"


def page() -> str:
    """Return the page of all problems."""
    lines = ["# Problems, waits and notices", "", GENERATED, _HEAD]
    for section, about in _SECTIONS:
        lines += [
            f"## {section}",
            "",
            about,
            "",
            "| name | what it says | who stops | what readers see | what ends it |",
        ]
        lines += ["| --- | --- | --- | --- | --- |"]
        found = [each for each in declared().values() if kind(each) == section]
        lines += [row(each) for each in sorted(found, key=lambda each: each.name)]
        lines.append("")
    return "\n".join(lines)


def row(problem: Problem) -> str:
    """Return a problem as a row of its table."""
    cells = (
        f"`{problem.name}`",
        shown(problem.cause),
        problem.stops.who,
        problem.seen or problem.stops.seen,
        "<br>".join(ways(problem)) or "it ends by itself",
    )
    return f"| {' | '.join(cells)} |"


def ways(problem: Problem) -> Iterator[str]:
    """Yield the ways out, for people; commands as code."""
    for way in problem.ways:
        command = shown(way.command, code=True)
        ticks = "``" if "`" in command else "`"
        pad = " " if "`" in command else ""
        yield f"{shown(way.what)}: {ticks}{pad}{command}{pad}{ticks}" if command else shown(way.what)


def shown(template: str, *, code: bool = False) -> str:
    """Return a template with its words in angle brackets; a hole that may be empty brings its own blank: left out."""
    opens = "<" if code else "\\<"  # a browser takes others for elements
    return _HOLE.sub(lambda hole: f"{opens}{hole[1]}>", _OPTIONAL.sub("", template)).replace("|", "\\|")
