"""Holds behind the frames of users: what a frame reads stays readable for as long as the frame lives."""

from __future__ import annotations

from strandline.errors import AsOfError
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.read import ReadHandle


class Hold:
    """What one frame reads.  Given back once: when no code uses the frame any longer, or its environment closes."""

    def __init__(self) -> None:
        self._taken: list[tuple[ReadHandle, Contents]] = []
        self._closed = False

    def take(self, handle: ReadHandle, contents: Contents) -> None:
        """Keep ``contents``, which ``handle`` handed out."""
        self._taken.append((handle, contents))

    def give_back(self) -> None:
        """Release the hold.  Only on the environment's own loop: a handle is not for two threads."""
        taken, self._taken = self._taken, []
        for handle, contents in taken:
            handle.release(contents)

    def close(self) -> None:
        """Refuse the frame's use from here on."""
        self._closed = True

    def check(self) -> None:
        """Raise `AsOfError` if the frame must no longer be used."""
        if self._closed:
            raise AsOfError(
                "the environment that this frame was read from is closed, and its hold is released; "
                "open the location and read it again"
            )
