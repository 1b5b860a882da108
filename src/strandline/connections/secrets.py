"""The kind of an option whose value is not shown."""

from __future__ import annotations

from typing import Final

from strandline.options import Kind
from strandline.store.secret import Secret

SECRET: Final = Kind(Secret, {"minLength": 1}, may_refer=True)
"""A reference to a text that is not shown."""
