"""How PostgreSQL writes and reads values in each session of ours: consensus, readers, endpoints, `verify`.

An operator may set these otherwise for a server, a database or a role.  With ``extra_float_digits = 0`` a double
arrives with 15 of its 17 digits; with ``standard_conforming_strings = off`` the client escapes an array of bytes twice,
and another key is stored than was given.  A session's own settings outrank those of an operator, for a session of
replication, too.

Source: PostgreSQL's manual, "Client Connection Defaults", "Version and Platform Compatibility".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FORMS: Final[Mapping[str, str]] = {
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "DateStyle": "ISO,YMD",
    "extra_float_digits": "1",
    "IntervalStyle": "postgres",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
    "TimeZone": "UTC",
    "xmlbinary": "base64",
    "xmloption": "content",
}
"""Every setting that changes how a server writes or reads a value."""
