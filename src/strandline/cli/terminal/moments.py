"""Moments as options of commands."""

from __future__ import annotations

import typer

from strandline.errors import InvalidUsage
from strandline.frontier.moments import moment


def moment_option(text: str) -> int:
    """As `moment`, for an option of a command, whose refusal is one of usage."""
    try:
        return moment(text)
    except InvalidUsage as error:
        raise typer.BadParameter(str(error)) from error
