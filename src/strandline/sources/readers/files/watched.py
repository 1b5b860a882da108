"""Which files a probe of the files source looks at: what is new, what is in doubt, and some of those that are known.

Plain bookkeeping over names and numbers; the reader asks the folder and the sequence.

- *Loose*: there and without a number.  All of them are looked at, until they are complete.
- *In doubt*: numbered, and a listing says that it went, or is another file now; or another process numbered it.  All of
  them are looked at, until one look finds nothing wrong.
- *Known*: numbered and there.  So many as the folder says are looked at by each probe, in turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from strandline.sources.readers.files.complete import is_unfinished
from strandline.sources.readers.files.folder import Listing
from strandline.sources.readers.files.sequence import FileSequence

DOUBTS_MAX: Final = 10_000
"""With so many files in doubt no others are looked at: each look that fails would add to them."""


class Watched:
    """The files of one source, as last listed."""

    def __init__(self, sequence: FileSequence) -> None:
        self._sequence = sequence
        self._turn: OrderedDict[int, None] = OrderedDict()  # the known files; the next to be looked at first
        self._numbered = 0  # so many numbers of the sequence are known here
        self._listed = False
        self.loose: set[str] = set()
        self.doubted: set[int] = set()

    def note(self, listing: Listing, must_be_there: Callable[[int], bool]) -> list[str]:
        """Take note of what a listing says; return the names of known files that are others now, or came back."""
        again = []
        for name in listing.came:
            number = self._sequence.number_of(name)
            if number is None:
                self.loose |= set() if is_unfinished(name) else {name}
            elif self._sequence.is_file(number):
                self._turn[number] = None
                if self._listed:
                    self.doubted.add(number)
                    again.append(name)
        for name in listing.gone:
            self.loose.discard(name)
            if (number := self._sequence.number_of(name)) is not None:
                self.doubted.add(number)
        first = 0 if not self._listed else self._numbered
        for number in filter(self._sequence.is_file, range(first, len(self._sequence))):
            name = self._sequence[number].name
            if name in self.loose:
                self.loose.discard(name)
                self._turn[number] = None
                self.doubted.add(number)
            elif number not in self._turn and must_be_there(number):
                self.doubted.add(number)
        for number in self._sequence.passed_over:
            self.left(number)
        self.doubted -= self._sequence.passed_over
        self._listed, self._numbered = True, len(self._sequence)
        return again

    def due(self, most: int) -> list[int]:
        """Return the numbers that are to be looked at; they are in doubt until `settled`."""
        if len(self.doubted) < DOUBTS_MAX:
            for number in list(islice(self._turn, most)):
                self._turn.move_to_end(number)
                self.doubted.add(number)
        return sorted(self.doubted)

    def settled(self, numbers: list[int]) -> None:
        """Take note that nothing is wrong with these files."""
        self.doubted.difference_update(numbers)

    def registered(self) -> None:
        """Take note of the files that this process has just numbered."""
        for number in filter(self._sequence.is_file, range(self._numbered, len(self._sequence))):
            name = self._sequence[number].name
            if name in self.loose:
                self.loose.discard(name)
                self._turn[number] = None
            else:
                self.doubted.add(number)  # another process was faster, and has seen a file that is not known here
        self._numbered = len(self._sequence)

    def left(self, number: int) -> None:
        """Take note that a file is gone, and may be."""
        self._turn.pop(number, None)

    def there(self, before: int, most: int) -> list[int]:
        """Return the first of the known files whose numbers are less than ``before``."""
        return list(islice(self._before(before), most))

    def _before(self, number: int) -> Iterator[int]:
        return (each for each in self._turn if each < number)
