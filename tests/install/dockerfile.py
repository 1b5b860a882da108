"""The Dockerfile as data: its stages, and in each the instructions in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = "/wheels"
"""Where the image has wheels."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name, and its text without comments, on one line."""

    name: str
    text: str


def instructions(text: str) -> list[Instruction]:
    r"""Return the instructions of a Dockerfile.

    >>> instructions("# a comment\nRUN a \\\n && b\nUSER me\n")
    [Instruction(name='RUN', text='a && b'), Instruction(name='USER', text='me')]
    """
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.split(None, 1) for line in whole.splitlines() if line.strip()]
    return [Instruction(name, " ".join(rest.split())) for name, rest in found]


def stages() -> list[list[Instruction]]:
    """Return the stages of our Dockerfile; each begins with its FROM."""
    found: list[list[Instruction]] = []
    for each in instructions((ROOT / "Dockerfile").read_text()):
        if each.name == "FROM":
            found.append([])
        found[-1].append(each)
    return found


def commands(stage: list[Instruction]) -> list[str]:
    """Return what a stage runs, one command each; the options of RUN itself are left out."""
    runs = [re.sub(r"^(--\S+ )+", "", each.text) for each in stage if each.name == "RUN"]
    return [command.strip() for run in runs for command in run.split(" && ")]


def command(stage: list[Instruction], begin: str) -> str:
    """Return the one command of a stage that begins so."""
    (found,) = [each for each in commands(stage) if each.startswith(begin)]
    return found
