"""The trigger of a materialization, checked before anything durable changes."""

from __future__ import annotations

from strandline.controller.defining.ground import Ground
from strandline.errors import DefinitionError
from strandline.options import holds_secret


def require_trigger(core: Ground, name: str, trigger: str | None) -> None:
    """Raise `DefinitionError` if a trigger holds a secret itself, or is no URL; `ConfigError` if it is not there."""
    if trigger is None:
        return
    if holds_secret("trigger", trigger):
        raise DefinitionError(
            f"materialization {name!r}: option trigger holds a secret: say where the URL is (env:NAME or file:PATH), "
            "not what it is"
        )
    core.assembly.triggers(trigger)
