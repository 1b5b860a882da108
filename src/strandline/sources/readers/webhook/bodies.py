"""A request's body, cut into messages: as bytes, none of which is changed.

Before a body that is cut a byte order mark is none of a message's bytes.

Whether a message can be decoded is not asked here.  What cannot be cut as the source says is one message as a whole,
and then one error, with its bytes, in the source's error half.
"""

from __future__ import annotations

import codecs

import msgspec

from strandline.sources.readers.webhook.options import Body

_elements = msgspec.json.Decoder(list[msgspec.Raw])


def messages(body: bytes, how: Body, content_type: str) -> tuple[bytes, ...]:
    r"""Return the messages of a body; none if it holds none.

    >>> messages(b'[{"a": 1}, {"a":2}]', Body.AUTO, "application/json; charset=utf-8")
    (b'{"a": 1}', b'{"a":2}')
    >>> messages(b'{"a":1}\r\n\n{"a":2}', Body.AUTO, "application/x-ndjson"), messages(b"[1", Body.JSON, "")
    ((b'{"a":1}', b'{"a":2}'), (b'[1',))
    >>> messages(b"\xef\xbb\xbf1,a\n2,b", Body.LINES, ""), messages(b"\xef\xbb\xbf[1,2]", Body.JSON, "")
    ((b'1,a', b'2,b'), (b'1', b'2'))
    """
    cut = how if how is not Body.AUTO else of_type(content_type)
    if cut is not Body.WHOLE:
        body = body.removeprefix(codecs.BOM_UTF8)
    match cut:
        case Body.LINES:
            return tuple(line.removesuffix(b"\r") for line in body.split(b"\n") if line.strip())
        case Body.JSON if body.lstrip()[:1] == b"[":
            try:
                return tuple(bytes(element) for element in _elements.decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the last: it is nested too deep
                return (body,)
        case Body.JSON:
            return (body,) if body.strip() else ()
        case _:
            return (body,) if body else ()


def of_type(content_type: str) -> Body:
    """Return how a body of this type is cut.

    >>> [of_type(each).value for each in ("application/json", "application/vnd.x+json", "text/csv", "text/plain", "")]
    ['json', 'json', 'lines', 'whole', 'whole']
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"application/x-ndjson", "application/jsonl", "application/ndjson", "text/csv"}:
        return Body.LINES
    return Body.JSON if kind == "application/json" or kind.endswith("+json") else Body.WHOLE
