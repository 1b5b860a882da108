"""Segments: any text becomes one part of a path, and no two the same."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from strandline.store.protocols import SEGMENT_CHARS_MAX, is_key, segment

ANY = st.text(max_size=SEGMENT_CHARS_MAX + 20)


@given(ANY)
def test_a_segment_is_a_key_of_its_own(text: str) -> None:
    """Damage: an id writes outside its directory, or to no place at all."""
    written = segment(text)
    assert is_key(written)
    assert "/" not in written
    assert written == written.lower(), "a file system that ignores case would take two for one"


@given(ANY, ANY)
def test_two_texts_have_two_segments(one: str, other: str) -> None:
    """Damage: two shards write into one directory, and one deletes the other's parts."""
    assert (segment(one) == segment(other)) == (one == other)


def test_all_short_texts_have_different_segments() -> None:
    """Damage: as above, where chance would not look."""
    texts = ["".join(chars) for n in range(5) for chars in product("=.a2eA/", repeat=n)]
    assert len({segment(text) for text in texts}) == len(texts)
