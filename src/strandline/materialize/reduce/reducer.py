"""Reducer: what the runtime asks to combine the documents of one key.

    combined = reducer.combine(documents)        associative: before what the endpoint holds is known, and for deltas
    reducer.finish(loaded, combined)             full: what the endpoint shall hold

`combine` may be called again with what it returned, with documents that follow, or with a part of them: the full
reduction is the same.

Reference model: `spec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strandline.errors import DefinitionError, InvalidUsage
from strandline.materialize.protocol.refusals import IRREDUCIBLE
from strandline.materialize.reduce.folding import Fold
from strandline.materialize.reduce.locations import Annotated
from strandline.materialize.reduce.values import (
    MISSING,
    Deleted,
    Document,
    NotAssociativeError,
    at,
    parse_pointer,
    pointer,
    shown,
)


class Reducer:
    """Combines documents as the annotations of a JSON Schema say.

    >>> counts = Reducer.of({"reduce": {"strategy": "merge"}, "properties": {"n": {"reduce": {"strategy": "sum"}}}})
    >>> counts.combine([{"n": 6}, {"n": -7}, {"n": -1}])
    [{'n': -2}]
    >>> counts.finish({"n": 4}, [{"n": -2}])
    {'n': 2}
    """

    def __init__(self, schema: Annotated, key: Sequence[tuple[str, ...]], item: str = "") -> None:
        self.schema = schema
        self._key = key
        self._item = item

    @classmethod
    def of(cls, schema: Mapping[str, Any], key: Sequence[str] = (), item: str = "") -> Reducer:
        """Return the reducer of ``schema``.

        Args:
            schema: a JSON Schema with annotations.
            key: the pointers of the collection's key, by which messages name a document.
            item: the materialization, by which messages name it.

        Raises:
            DefinitionError: the schema has a fault, whose place is named; or a pointer is none.
        """
        steps = [parse_pointer(each) for each in key]
        for text, each in zip(key, steps, strict=True):
            if each is None:
                raise DefinitionError(f'the key {shown(text)} is not a JSON pointer: write "/name"')
        return cls(Annotated(schema), [each for each in steps if each is not None], item)

    def combine(self, documents: Sequence[Document]) -> list[Document]:
        """Return documents with the same full reduction, in order: one if they can be combined to one.

        ``documents`` have one key, are in order, and are not changed.

        Raises:
            DefinitionError: a strategy met values that it is not for.  The message names key, location and values.
        """
        combined: list[Document] = []
        begin = 0
        fold = Fold(self.schema.root, full=False)
        for end, document in enumerate(documents):
            try:
                self._add(fold, document)
            except NotAssociativeError:
                combined.append(self._fold(documents[begin:end]).held)
                begin, fold = end, self._fold([document])
        return [*combined, fold.held] if documents else []

    def finish(self, loaded: Document | None, combined: Sequence[Document]) -> Document | Deleted:
        """Return the full reduction of ``combined`` into ``loaded``, which is None if the endpoint has no document.

        Raises:
            DefinitionError: as `combine`.
            InvalidUsage: there is nothing to reduce.
        """
        if not combined:
            raise InvalidUsage("no document to reduce: a key without new documents needs no reduction")
        fold = Fold(self.schema.root, full=True, held=MISSING if loaded is None else loaded)
        for document in combined:
            self._add(fold, document)
        reduced: Document | Deleted = fold.held
        return reduced

    def _fold(self, documents: Sequence[Document]) -> Fold:
        """Fold documents that are known to be associative."""
        fold = Fold(self.schema.root, full=False)
        for document in documents:
            self._add(fold, document)
        return fold

    def _add(self, fold: Fold, document: Document) -> None:
        try:
            fold.add(document)
        except DefinitionError as error:
            raise self._named(document, error) from error
        except RecursionError as error:
            raise self._named(document, DefinitionError("it is nested too deeply to be reduced")) from error

    def _named(self, document: Document, error: DefinitionError) -> DefinitionError:
        if not self._key:
            return error
        named = ", ".join(f"{pointer(steps)[1:]} = {shown(at(document, steps))}" for steps in self._key)
        return DefinitionError(IRREDUCIBLE.said(key=named, why=error, item=self._item))
