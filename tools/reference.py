"""Write the pages of docs/reference that follow from the code: commands, problems (`problems.py`), and Python names.

    python tools/reference.py             writes the pages
    python tools/reference.py --check     says which of them differ; status 1 if any does

mkdocstrings would be less to maintain.  It renders while the site is built, so a reader of the repository would see
nothing, and no test could compare what is there with the code.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import problems
import typer

import strandline
from strandline.cli.app import app
from strandline.cli.terminal.exits import Exit

REFERENCE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
EXITS: Final = {
    Exit.OK: "Done.",
    Exit.FAILED: "It failed; one sentence on standard error says why, and what to do.",
    Exit.USAGE: "The command line is wrong; standard error says which option.",
    Exit.DIFFERENCE: "`verify` found a difference, or `fsck` found damage that a read can meet.",
    Exit.FENCED: "Another process has taken over the location, so this one has ended.",
    Exit.STANDS_STILL: "`status` shows something that stands still: it has a problem, which the output names.",
    Exit.NO_EXECUTORS: (
        "Jobs have waited too long for executors of the Spark cluster, or its master no longer knows the application; "
        "start it again."
    ),
}

CALLED: Final = "The names of `strandline`: they may grow, and do not change."
SECTIONS: Final = (
    ("strandline.errors", "The errors that every call may raise. Their base class is `StrandlineError`."),
    ("strandline.testing.trial", "What tests a view ([how to](../how-to/test-views.md)): `strandline.testing.view`."),
    (
        "strandline.materialize.driver",
        "What an author of a driver implements ([drivers](../drivers.md)): `Driver`, and a `DriverKind` that names it.",
    ),
    ("strandline.materialize.protocol.messages", "The messages of a session between the runtime and a driver."),
    ("strandline.sources.reader", "What an author of a source implements: `SourceReader`, and a `ReaderKind`."),
    ("strandline.sources.kinds", "What a reader may offer beside that: connections, discovery, progress."),
)
CONTRACTS: Final = "strandline.testing.contracts"


# --- commands --------------------------------------------------------------------------------------------------------
def commands() -> str:
    """Return the page of the commands."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", problems.GENERATED, ""]
    lines += [
        "Every command prints its own page with `--help`. [Operations](../operations.md) says when to use which.",
        "",
    ]
    lines += ["## Exit statuses", "", "| status | meaning |", "| --- | --- |"]
    lines += [f"| {status.value} | {EXITS[status]} |" for status in Exit]
    for path, command in leaves(root, ("strandline",)):
        lines += ["", f"## {' '.join(path)}", "", told(command), "", *usage(path, command)]
    return "\n".join(lines) + "\n"


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command that does something, with the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        if not each.hidden:
            yield from leaves(each, (*path, name))


def told(command: Any) -> str:
    """Return what a command does, in one paragraph."""
    return " ".join(inspect.cleandoc(command.help or "").split())


def usage(path: tuple[str, ...], command: Any) -> Iterator[str]:
    """Yield how a command is called, and a table of what it takes."""
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    context = typer.Context(command, info_name=path[-1])
    yield f"```text\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```"
    if not shown:
        return
    yield ""
    yield "| | meaning | default |"
    yield "| --- | --- | --- |"
    for each in shown:
        names = ", ".join(f"`{name}`" for name in [*each.opts, *each.secondary_opts])
        if each.param_type_name == "argument":
            names = f"`{each.metavar or (each.name or '').upper()}`"
        elif not getattr(each, "is_flag", False):
            names += f" `{each.metavar or each.name.upper()}`"
        yield f"| {names} | {cell(each.help or '')} | {default(each)} |"


def default(parameter: Any) -> str:
    """Return the default of an option, where it says more than that there is none."""
    if parameter.required:
        return "required"
    found = parameter.default
    return "" if found is None or found is False or found == () or callable(found) else f"`{found}`"


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# --- Python ----------------------------------------------------------------------------------------------------------
def python() -> str:
    """Return the page of the Python names."""
    lines = ["# Python", "", problems.GENERATED, "", CALLED, ""]
    for name in strandline.__all__:
        lines += [*described(f"strandline.{name}", name, getattr(strandline, name), 2)]
    for module_name, purpose in SECTIONS:
        module = importlib.import_module(module_name)
        lines += [f"## {module_name}", "", purpose, ""]
        for name, value in public(module):
            lines += [*described(f"{module_name}.{name}", name, value, 3)]
    lines += ["## strandline.testing", ""]
    lines += ["Test suites to subclass, one for each protocol. `pip install 'strandline[testing]'` brings pytest.", ""]
    lines += ["| suite | tests |", "| --- | --- |"]
    lines += [f"| `{name}` | {cell(first(value))} |" for name, value in suites()]
    return "\n".join(lines) + "\n"


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions that a module defines, in its own order."""
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if own and not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, value


def suites() -> Iterator[tuple[str, type]]:
    """Yield the test suites by their full names."""
    package = importlib.import_module(CONTRACTS)
    root = Path(str(package.__file__)).parent
    for path in sorted(root.rglob("*_contract.py")):
        name = ".".join([CONTRACTS, *path.relative_to(root).with_suffix("").parts])
        for own, value in public(importlib.import_module(name)):
            if inspect.isclass(value) and own.endswith("Contract"):
                yield f"{name}.{own}", value


def described(full: str, name: str, value: Any, level: int) -> Iterator[str]:
    """Yield the section of a name: its signature, its docstring, and its public members."""
    yield f"{'#' * level} {name}"
    yield ""
    if inspect.isfunction(value):
        yield from signature(full, value)
        yield prose(value)
        yield ""
        return
    if not issubclass(value, BaseException | enum.Enum) and not getattr(value, "_is_protocol", False):
        yield from signature(full, value)
    yield prose(value)
    yield ""
    if issubclass(value, enum.Enum):
        yield ", ".join(f"`{each.name}`" for each in value)
        yield ""
        return
    for member, found in vars(value).items():
        if member.startswith("_") or not (inspect.isfunction(found) or isinstance(found, property | classmethod)):
            continue
        yield f"{'#' * (level + 1)} {name}.{member}"
        yield ""
        own: Any = found.fget if isinstance(found, property) else inspect.unwrap(getattr(value, member))
        if not isinstance(found, property):
            yield from signature(member, own)
        yield prose(own)
        yield ""


def signature(name: str, value: Callable[..., Any]) -> Iterator[str]:
    """Yield a block that shows how something is called."""
    found = inspect.signature(value)
    bare = [each for each in found.parameters.values() if each.name not in {"self", "cls"}]
    if any(each.name == "access" or each.name.startswith("_") for each in bare):
        return  # programs do not make one: a call returns it
    shown = re.sub(r"<[^<>]*>", "…", str(found.replace(parameters=bare)))
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)
    yield f"```python\n{name}{shown}\n```"
    yield ""


def prose(value: Any) -> str:
    """Return a docstring as Markdown: sections as bold words, examples as code."""
    text = inspect.getdoc(value) or ""
    assert text, f"{value!r} has no docstring"
    lines: list[str] = []
    for line in text.splitlines():
        if line in {"Args:", "Returns:", "Raises:", "Yields:"}:
            lines += [f"**{line[:-1]}**", ""]
        elif lines and (match := re.fullmatch(r"    (\w[\w.]*): (.*)", line)):
            lines.append(f"- `{match[1]}`: {match[2]}")
        else:
            lines.append(line)
    return re.sub(r"(?ms)^(>>> .*?)(?=\n\n|\Z)", r"```python\n\1\n```", "\n".join(lines))


def first(value: Any) -> str:
    """Return the first sentence of a docstring."""
    return (inspect.getdoc(value) or "").partition("\n")[0]


# --- pages -----------------------------------------------------------------------------------------------------------
PAGES: Final = {"commands.md": commands, "problems.md": problems.page, "python.md": python}


def differing() -> list[str]:
    """Return the pages that are not what the code says."""
    found = {name: REFERENCE / name for name in PAGES}
    return [name for name, path in found.items() if not path.exists() or path.read_text() != PAGES[name]()]


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them; return the exit status."""
    if arguments == ["--check"]:
        stale = differing()
        for name in stale:
            print(f"docs/reference/{name} is not what the code says: python tools/reference.py")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
