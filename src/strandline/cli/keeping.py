"""The maintenance commands inspect, fsck, compact, gc and release.  They only report; ``--apply`` acts.

docs/operations.md explains their output, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.opening import Opener
from strandline.cli.terminal.output import Output, table

_LISTS: Final = {"sort", "keys"}
"""What ``--json`` says of a batch and a table has no room for."""


def inspect_shard(opener: Opener, root: Path, name: str, output: Output) -> None:
    """Print the state of a shard."""
    with opener.looking(opener.place(root)) as env:
        found = env.inspect(name)
    head = (
        f"{found['name']}: shard {found['shard']}, version {found['seqno']}, versions kept {found['versions']}, "
        f"since {_frontier(found['since'])}, upper {_frontier(found['upper'])}, epoch {found['epoch']}"
    )
    output.result(found, head + (f", sorted by {', '.join(found['sort'])}" if found["sort"] else ""))
    if output.json:
        return
    shown = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in found["bytes"].items())
    output.result({}, f"bytes: {shown}")
    _show(output, "since waits for", found["holders"])
    _show(output, "batches", [{name: each[name] for name in each if name not in _LISTS} for each in found["batches"]])


def fsck(opener: Opener, root: Path, output: Output, *, apply: bool) -> Exit:
    """Print the damaged, missing and leaked objects; with ``apply`` remove the leaked ones."""
    project = opener.place(root)
    with opener.keeping(project) if apply else opener.looking(project) as env:
        found = env.fsck(apply=apply)
    leaked = len(found["found"]) - found["harmful"]
    head = (
        f"{found['shards']} shards, {found['parts']} parts, {found['bytes']} bytes read: "
        f"{found['harmful']} damaged or missing, {leaked} leaked"
    )
    output.result(found, head + (f", {len(found['removed'])} removed" if apply else ""))
    if not output.json:
        for each in found["found"]:
            of = "" if each["of"] is None else f" in {each['of']}"
            output.result({}, f"{each['fault']}{of}: {each['what']}")
    return Exit.DIFFERENCE if found["harmful"] else Exit.OK


def compact(opener: Opener, root: Path, name: str | None, output: Output, *, apply: bool) -> Exit:
    """Print the shards that can be merged; with ``apply`` merge them."""
    project = opener.place(root)
    with opener.keeping(project) if apply else opener.looking(project) as env:
        found = env.compact(name, apply=apply)
    output.result({"applied": apply, "shards": found}, _summary("to compact", found, apply=apply))
    if not output.json:
        _show(output, "", found)
    return Exit.FAILED if any(each["outcome"].startswith("failed") for each in found) else Exit.OK


def gc(opener: Opener, root: Path, output: Output, *, apply: bool) -> None:
    """Print the garbage; with ``apply`` delete it."""
    project = opener.place(root)
    with opener.keeping(project) if apply else opener.looking(project) as env:
        found = env.gc(apply=apply)
    output.result({"applied": apply, "shards": found}, _summary("to collect", found, apply=apply))
    if not output.json:
        _show(output, "", found)


def release(opener: Opener, root: Path, output: Output) -> None:
    """Release the location from a holder that died and is not re-entrant."""
    with opener.keeping(opener.place(root)) as env:
        holder = env.release()
    said = "no process holds this location" if holder is None else f"released: it was held by {holder}"
    output.result({"released": holder}, said)


def _summary(what: str, found: list[dict[str, Any]], *, apply: bool) -> str:
    if not found:
        return f"nothing {what}"
    return f"{len(found)} shards {what}" + (", done" if apply else "; --apply does it")


def _show(output: Output, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    listed = list(rows)
    if not listed:
        return
    if title:
        output.result({}, f"{title}:")
    names = list(dict.fromkeys(name for row in listed for name in row))
    cells = [["" if row.get(name) is None else row[name] for name in names] for row in listed]
    output.console.print(table([name.replace("_", " ") for name in names], cells))


def _frontier(at: int | None) -> str:
    return "empty" if at is None else str(at)
