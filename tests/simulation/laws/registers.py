"""What the outside saw of a register to which everybody adds a word of their own, each once.

Written from what a register promises (after an unknown outcome the writer recognises its own value):

- register: a word that was acknowledged before a read began is in it; no word is there twice; a word whose change was
  never asked for is not there; of two reads one is the beginning of the other, and a read that began after another had
  ended is not shorter.
"""

from __future__ import annotations

from laws.broken import require


class RegisterHistory:
    """The memory of one register."""

    def __init__(self) -> None:
        self._asked: set[bytes] = set()
        self._acknowledged: list[bytes] = []
        self._longest: list[bytes] = []

    def ask(self, word: bytes) -> None:
        """Note that ``word`` is about to be added."""
        self._asked.add(word)

    def tell(self, word: bytes) -> None:
        """Note that this was acknowledged."""
        self._acknowledged.append(word)

    @property
    def acknowledged(self) -> int:
        """How many additions were acknowledged."""
        return len(self._acknowledged)

    def began(self) -> tuple[int, int]:
        """Return what a read that begins now must show: how many acknowledgements, at least how many words."""
        return len(self._acknowledged), len(self._longest)

    def read(self, words: list[bytes], began: tuple[int, int]) -> None:
        """Note a read."""
        acknowledged, longest = began
        twice = sorted({word for word in words if words.count(word) > 1})
        require("register", not twice, f"{twice} are there twice: {words}")
        lost = [word for word in self._acknowledged[:acknowledged] if word not in words]
        require("register", not lost, f"{lost} were acknowledged and are lost: {words}")
        require("register", set(words) <= self._asked, f"no user added {sorted(set(words) - self._asked)}")
        short, long = sorted((words, self._longest), key=len)
        require("register", long[: len(short)] == short, f"{words} and {self._longest} are no versions of one register")
        require("register", len(words) >= longest, f"{words} is older than what was read before, {longest} words")
        self._longest = long
