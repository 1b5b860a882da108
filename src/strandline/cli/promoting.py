"""Commands by which a location becomes what its project says.

`strandline plan` shows what would change, `strandline apply` changes it.  `strandline run --read-only` prepares the
next version beside the process that writes, and `strandline promote` has it take over.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from strandline.cli.running import Stop, Wanted, going_on, until_stopped
from strandline.cli.terminal.exits import Exit
from strandline.cli.terminal.lasting import changing, noted, stage
from strandline.cli.terminal.opening import Asked, Opener
from strandline.cli.terminal.output import Output
from strandline.cli.terminal.reporting import reporting
from strandline.client import NextVersion
from strandline.controller.defining.project.settings import Project, plain
from strandline.controller.preparing.planned import ALL
from strandline.errors import FencedError, NothingStored, StoreError, Unavailable
from strandline.plane import deploying


def prepare(opener: Opener, project: Project, wanted: Wanted, output: Output) -> Exit:
    """Compute what the project has otherwise than its location, beside the writer; once asked to, be the writer.

    ``wanted.once``: end once it has caught up.
    """
    return until_stopped(lambda stop: _prepare(opener, project, wanted, output, stop), output.note)


def _prepare(opener: Opener, project: Project, wanted: Wanted, output: Output, stop: Stop) -> Exit:
    with ExitStack() as opened:
        with noted("opening the location", output), stop.giving_up():
            version = opened.enter_context(opener.preparing(project, tick_ms=wanted.tick_ms))
        env, begun = None, 0.0
        while env is None:  # a promotion may be withdrawn before it is begun
            try:
                ended = _prepared(version, wanted, output, stop)
            except FencedError as error:
                output.note(f"strandline: fenced: another process prepares the next version ({error})")
                return Exit.FENCED
            if ended is not None:
                return ended
            begun = time.monotonic()
            output.log("promoting", views=",".join(version.names))
            env = version.promote()
    with env, reporting(project, output) as report:
        return going_on(env, project, wanted, report, stop, promoted=begun)


def _prepared(version: NextVersion, wanted: Wanted, output: Output, stop: Stop) -> Exit | None:
    """Prepare until a promotion is asked for: None; or until there is another end."""
    said: dict[str, str] = {}
    begun = False
    while not stop.asked:
        started = time.monotonic()
        try:
            version.tick()
        except (StoreError, Unavailable) as error:
            output.log("tick failed, will be retried", what=str(error))
        else:
            if not version.names:
                output.note("strandline: the location has this version already; there is nothing to prepare")
                return Exit.OK
            if not begun:
                begun = True
                output.log("preparing", views=",".join(version.names))
                for name, why in version.later.items():
                    output.log("later", of=name, what=why)
            _report(dict(version.behind), said, output)
            said = dict(version.behind)
            if version.asked:
                return None
            if wanted.once and not version.behind:
                return Exit.OK
        stop.wait(wanted.tick_ms / 1000 - (time.monotonic() - started))
    return Exit.OK


def _report(behind: dict[str, str], said: dict[str, str], output: Output) -> None:
    for name in sorted(behind.keys() | said.keys()):
        if name not in behind:
            output.log("caught up", of=name)
        elif name not in said:
            output.log("behind", of=name, what=behind[name])


def promote(opener: Opener, root: Path, *, force: bool, timeout: float, output: Output) -> None:
    """Have the next version take over, and print how long that took."""
    with opener.beside(opener.place(root), output.note) as env:  # the process that serves is the one that ends
        begun = time.monotonic()
        generation = env.promote(force=force, timeout=timeout)
        seconds = time.monotonic() - begun
    document = {"generation": generation, "seconds": round(seconds, 3)}
    output.result(document, f"promoted in {seconds:.1f} s: generation {generation} writes now")


REFUSED: Final = "strandline: nothing has changed: correct what is refused above, and apply again"
_SIGNS: Final = {
    "create": "+",
    "replace": "~",
    "alter": "~",
    "recreate": "!",
    "refused": "!",
    "untried": "?",
    "orphan": "-",
}


def _far(env: Asked, root: Path, *, apply: bool) -> Callable[[], str]:
    """Return what says how far the plan of the project in ``root`` is, or its application."""
    return lambda: stage(env, deploying(plain(root).name, apply=apply))


def plan(opener: Opener, root: Path, *, drop: Sequence[str], output: Output) -> Exit:
    """Print what the project says otherwise than its location has it; it fails if a definition is wrong."""
    project = opener.project(root, whole=False)
    with noted("opening the location", output):
        try:
            env: Asked = opener.reading(project, output.note)
        except NothingStored:
            env = opener.imagining(project)
    with env, noted(f"planning {len(project.definitions)} definitions", output, far=_far(env, root, apply=False)):
        found = env.deploy(root.absolute(), drop=drop)
    output.result(found, "\n".join(_planned(found, drop)))
    return Exit.FAILED if _is_refused(found) else Exit.OK


def apply(
    opener: Opener, root: Path, *, drop: Sequence[str], ask: Callable[[str], bool] | None, output: Output
) -> Exit:
    """Have the location be what the project says, and print what has changed.

    ``drop``: what may be dropped, by name, or ``all``.  ``ask``: asks a person whether to; None: there is no terminal.
    """
    with changing(opener, opener.place(root), output, whole=False) as env:
        if not output.json:
            with noted("planning", output, far=_far(env, root, apply=False)):
                found = env.deploy(root.absolute(), drop=drop)
            output.result(found, "\n".join(_planned(found, drop)))
            if _is_refused(found):  # each reason stands there already
                output.note(REFUSED)
                return Exit.FAILED
            named = ", ".join(f"{each['kind']} {each['name']}" for each in found["drops"])
            if named and not drop and ask is not None and ask(f"drop {named}, and all that they hold?"):
                drop = [each["name"] for each in found["drops"]]
        with noted("applying the project", output, far=_far(env, root, apply=True)):
            done = env.deploy(root.absolute(), apply=True, drop=drop)
    changed = [*(f"created {name}" for name in done["created"]), *(f"replacing {name}" for name in done["replaced"])]
    changed += [f"later, once views are replaced: {name}" for name in done["later"]]
    changed += [f"dropped {name}" for name in done["dropped"]]
    output.result(done, "\n".join(changed) or "nothing has changed")
    for why in done["refused"]:
        output.note(f"strandline: {why}")
    return Exit.FAILED if done["refused"] else Exit.OK


def _is_refused(found: Mapping[str, Any]) -> bool:
    """Return whether anything in a plan is wrong: then none of it is applied."""
    return any(each["what"] == "refused" for each in found["changes"])


def _planned(found: Mapping[str, Any], drop: Sequence[str]) -> Iterator[str]:
    """Yield a plan for people, a change in each line; ``drop``: the names that the command has."""
    for each in found["changes"]:
        cost = "" if each["rows"] is None else f"; about {each['rows']:,} rows are read"
        cost += "" if each["seconds"] is None else f", which takes about {each['seconds']:,} s here"
        said = "; ".join(text for text in (each["why"], each["effect"]) if text)
        yield f"{_SIGNS[each['what']]} {each['what']} {each['kind']} {each['name']}: {said}{cost}"
    if not found["changes"]:
        yield "the location is as the project says"
    named = {name.lower() for name in drop}
    alone = [each["name"] for each in found["drops"] if each["alone"]]
    kept = alone if ALL in named else [each["name"] for each in found["drops"] if each["name"].lower() not in named]
    if kept:
        command = " ".join(f"--drop {shlex.quote(name)}" for name in dict.fromkeys((ALL, *drop, *alone)))
        yield f"nothing is dropped that is not named: `strandline apply {command}` drops {', '.join(kept)}"
