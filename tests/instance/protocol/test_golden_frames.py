"""The frames of each kind of message are those of the files in `golden`.

A file holds a frame as bytes, and what is in it for people to read.  If a frame is meant to change, write them anew:

    STRANDLINE_GOLDEN=write python -m pytest -q tests/instance/protocol/test_golden_frames.py

A frame that an older version would misread is another format (`codec.FORMAT`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.instance.protocol.samples import EXAMPLES, told

from strandline.instance.protocol import codec

GOLDEN: Final = Path(__file__).parent / "golden"
LINE: Final = 64
"""Bytes of a frame in a line."""


def shown(value: Any) -> Any:
    """Return a plain value as JSON holds it."""
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case list():
            return [shown(each) for each in value]
        case dict():
            return {name: shown(each) for name, each in value.items()}
        case _:
            return value


@pytest.fixture(params=EXAMPLES)
def golden(request: pytest.FixtureRequest) -> tuple[Any, bytes]:
    """A message, and its frame as it was when its file was written."""
    message, path = EXAMPLES[request.param], GOLDEN / f"{request.param}.json"
    if os.environ.get("STRANDLINE_GOLDEN") == "write":
        frame = codec.encode(message)
        lines = [frame[at : at + LINE].hex() for at in range(0, len(frame), LINE)]
        held = {"frame": shown(msgspec.msgpack.decode(frame)), "bytes": lines}
        path.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n")
    held = json.loads(path.read_text())
    frame = bytes.fromhex("".join(held["bytes"]))
    assert shown(msgspec.msgpack.decode(frame)) == held["frame"], "the file says otherwise than its bytes"
    return message, frame


def test_a_frame_is_what_it_was(golden: tuple[Any, bytes]) -> None:
    """Damage: the format changes unnoticed, and processes of two releases no longer understand each other."""
    message, frame = golden
    assert codec.encode(message) == frame


def test_a_frame_is_read_as_what_it_was(golden: tuple[Any, bytes]) -> None:
    """Damage: a frame of an older release is obeyed as another message."""
    message, frame = golden
    assert told(codec.decode(frame)) == told(message)


def test_every_file_is_of_a_message() -> None:
    """Damage: a file that no test reads guards nothing."""
    assert {path.stem for path in GOLDEN.iterdir()} == set(EXAMPLES)
