"""Texts of all types, each with the value that it stands for, or `BAD`: written by hand, and the truth of the tests."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any, Final

BAD: Final = "cannot be decoded"


def _moment(*parts: int, zone: dt.tzinfo | None = dt.UTC) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=zone)  # type: ignore[misc,arg-type]


def _bad(*texts: str) -> dict[str, Any]:
    return dict.fromkeys(texts, BAD)


_NO_NUMBERS: Final = _bad(
    *(" 1", "1 ", "\t1", "1\x7f", "1\u00a0", "1_000", "1 000", "1,000", "1'000", "68,83", "1.234,56", "1,234.56"),
    *("1d", "1D", "1f", "1F", "1L", "0x10", "0x1p3", "\u0663", "\uff17", "\U0001d7cf", "--1", "+-1", "- 1", "+", "-"),
    *(
        ".",
        "-.",
        "1..2",
        "1.2.3",
        "1e",
        "1e+",
        "e5",
        "1e1.5",
        "$5",
        "5%",
        "(5)",
        "5-",
        "true",
        "null",
        "1e5e5",
        "\ufeff1",
    ),
)
_NO_DATES: Final = _bad(
    *("2020", "2020-1", "2020-01", "2020-1-2", "2020-01-2", "20200102", "2020/01/02", "02.01.2020", "20-01-02"),
    *("2020-01-02T", "2020-01-02Tx", "2020-01-02 ", " 2020-01-02", "+2020-01-02", "12020-01-02", "0000-01-01"),
    *("-0001-01-01", "2020-02-30", "2019-02-29", "2020-13-01", "2020-00-01", "2020-01-00", "2020-01-32", "epoch"),
    *("now", "today", "yesterday", "tomorrow", "18262", "2020-W01-1", "2020-001", "\uff12020-01-02", "infinity"),
    *("2020-01-02\u00a0", "1577836800", "1577836800000", "12:30", "T12:30", "2020-01-02Z"),
)
_AT: Final = "2020-01-02T03:04:05"
_NO_TIMES: Final = _bad(
    *("2020-01-02T03", "2020-01-02 3:04", "2020-01-02T3:4:5", "2020-01-02T24:00:00", "2020-01-02T23:59:60"),
    *("2020-01-02T23:60:00", f"{_AT}.", f"{_AT},5", f"{_AT}.1234567", f"{_AT}.1234560001", f"{_AT} ", f" {_AT}"),
    *("2020-01-02t03:04:05", "20200102T030405Z", "2020-01-02  03:04:05", "12020-01-02T03:04:05", "2020-02-30 00:00:00"),
    *("2020-01-02T03:04Z", "2020-01-02T03:04+01:00", f"{_AT}z", f"{_AT}+1", f"{_AT}+1:00", f"{_AT}+01:0"),
    *(f"{_AT}+01:60", f"{_AT}+18:01", f"{_AT}+19", f"{_AT}+01:00:30", f"{_AT}PST", f"{_AT} PST", f"{_AT}GMT"),
    *(f"{_AT}Europe/Paris", f"{_AT} Europe/Paris", f"{_AT}  Z", f"{_AT}Z ", f"{_AT}.123456789Z", "0000-01-01 00:00:00"),
)
_ZONES: Final = {
    **dict.fromkeys([f"{_AT}{zone}" for zone in ("Z", " Z", "UTC", " UTC", "+00", "-00:00")], (3, 4)),
    **dict.fromkeys([f"{_AT}{zone}" for zone in ("+01", "+0100", "+01:00", " +01:00")], (2, 4)),
    f"{_AT}-01:30": (4, 34),
    f"{_AT}-18:00": (21, 4),
}


def _times(zone: dt.tzinfo | None) -> dict[str, Any]:
    return {
        "2020-01-02": _moment(2020, 1, 2, zone=zone),
        "2020-01-02 03:04": _moment(2020, 1, 2, 3, 4, zone=zone),
        _AT: _moment(2020, 1, 2, 3, 4, 5, zone=zone),
        f"{_AT}.1": _moment(2020, 1, 2, 3, 4, 5, 100_000, zone=zone),
        f"{_AT}.123456": _moment(2020, 1, 2, 3, 4, 5, 123_456, zone=zone),
        f"{_AT}.123456000": _moment(2020, 1, 2, 3, 4, 5, 123_456, zone=zone),
        "0001-01-01T00:00:00": _moment(1, 1, 1, zone=zone),
        "9999-12-31 23:59:59.999999": _moment(9999, 12, 31, 23, 59, 59, 999_999, zone=zone),
    }


def _whole(bits: int) -> dict[str, Any]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    good = {"0": 0, "7": 7, "+7": 7, "-7": -7, "007": 7, "-0": 0, str(least): least, str(most): most}
    beyond = _bad(str(least - 1), str(most + 1), "9" * 30, "1.0", "1.", ".5", "1e3", "1E3", "NaN", "Infinity")
    return good | beyond | _NO_NUMBERS


_FLOATING: Final = {
    "1.5": 1.5,
    "-0.0": 0.0,
    "1e3": 1000.0,
    "1E+5": 100_000.0,
    ".5": 0.5,
    "5.": 5.0,
    "+007": 7.0,
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
    "+INF": math.inf,
    "-INF": -math.inf,
    "1e400": math.inf,
    "-1e9999": -math.inf,
    "1e-400": 0.0,
    **_bad("nan", "NAN", "inf", "Inf", "INF", "+inf", "-inf", "infinity", "+NaN", "-NaN"),
    **_NO_NUMBERS,
}
TEXTS: Final[dict[str, dict[str, Any]]] = {
    "boolean": {
        **dict.fromkeys(("true", "TRUE", "tRue"), True),
        **dict.fromkeys(("false", "False"), False),
        **_bad("t", "f", "T", "yes", "no", "y", "n", "1", "0", "on", "off", " true", "true ", "fal\u017fe", "null"),
    },
    "tinyint": _whole(8),
    "smallint": _whole(16),
    "int": _whole(32),
    "bigint": _whole(64),
    "float": _FLOATING | {"16777217": 16_777_216.0, "1e39": math.inf, "0.1": 0.10000000149011612},
    "double": _FLOATING | {"68.83": 68.83, "9007199254740993": 9_007_199_254_740_992.0},
    "decimal(6,2)": {
        "68.83": Decimal("68.83"),
        "-12.5": Decimal("-12.50"),
        "+1": Decimal("1.00"),
        ".5": Decimal("0.50"),
        "5.": Decimal("5.00"),
        "007.50": Decimal("7.50"),
        "1e2": Decimal("100.00"),
        "1E-1": Decimal("0.10"),
        "1e+3": Decimal("1000.00"),
        "1.005": Decimal("1.01"),
        "-1.005": Decimal("-1.01"),
        "-0": Decimal("0.00"),
        "9999.994": Decimal("9999.99"),
        "1e-999": Decimal("0.00"),
        "0e0": Decimal("0.00"),
        **_bad("9999.995", "10000", "1e4", "1e999", "1e9999", "1e99999999", "1e-99999", "1e0005", "NaN", "Infinity"),
        **_NO_NUMBERS,
    },
    "date": {
        "2020-01-02": dt.date(2020, 1, 2),
        "2020-02-29": dt.date(2020, 2, 29),
        "0001-01-01": dt.date(1, 1, 1),
        "9999-12-31": dt.date(9999, 12, 31),
        _AT: BAD,
        "2020-01-02 05:06:07": BAD,
        **_NO_DATES,
    },
    "timestamp": {
        **_times(dt.UTC),
        **{text: _moment(2020, 1, 2, hour, minute, 5) for text, (hour, minute) in _ZONES.items()},
        **_bad("0001-01-01 00:00:00+01", "9999-12-31 23:59:59-01"),
        **_NO_DATES,
        **_NO_TIMES,
    },
    "timestamp_ntz": {**_times(None), **_bad(*_ZONES), **_NO_DATES, **_NO_TIMES},
    "string": {text: text for text in (" x ", "1,5", "NaN", "\x7f", "é😀")},
    "binary": {text: text.encode() for text in (" x ", "QUI=", "é😀")},
}
"""By type: where a field or a key is a text.  JSON's strings are these too, where a type takes any."""
STRINGLESS: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint"})
"""Types whose JSON is no string."""
_TOKENS: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"true": True, "false": False, **_bad("1", "0", "True", "TRUE", "[true]", "{}")},
    "tinyint": {"-128": -128, **_bad("128", "1.0")},
    "smallint": {"32767": 32_767, **_bad("32768")},
    "int": {"7": 7, "-0": 0, **_bad("1.0", "1e3", "2147483648", "true", "[7]", "{}", "NaN", "+7", "07")},
    "bigint": {"9007199254740993": 9_007_199_254_740_993, **_bad("9223372036854775808", "1e3")},
    "float": {"1.5": 1.5, "7": 7.0, "NaN": math.nan, **_bad("true")},
    "double": {
        "1.5": 1.5,
        "-0.0": 0.0,
        "12345678901234567890123": 1.2345678901234568e22,
        "1e400": math.inf,
        "1e9999": math.inf,
        "NaN": math.nan,
        "Infinity": math.inf,
        "-Infinity": -math.inf,
        **_bad("true", "[1.5]", "{}", "1d", "0x1", '"1.5"', '"7"'),
    },
    "decimal(6,2)": {
        "68.83": Decimal("68.83"),
        "1e2": Decimal("100.00"),
        "1.005": Decimal("1.01"),
        "7": Decimal("7.00"),
        r'"\u0036.5"': Decimal("6.50"),
        "'6.5'": Decimal("6.50"),
        "0.005000000000000000001": Decimal("0.01"),
        "0.00499999999999999999999": Decimal("0.00"),
        "9999.99499999999999999999": Decimal("9999.99"),
        "0.1249999999999999999E1": Decimal("1.25"),
        "0.1244999999999999999999E1": Decimal("1.24"),
        "1e-999": Decimal("0.00"),
        "1e-99999999": Decimal("0.00"),
        **_bad("9999.995", "1e99999999", "true", "[1]", "{}", "NaN", '""', r'"6\u002c5"', "'6,5'"),
        **_bad('"6\'"', '"6\\n"'),
    },
    "date": _bad("18262", "20200102", "true", "[]", '""', '"2020-01-02\'x"'),
    "timestamp": {
        "0": _moment(1970, 1, 1),
        "1577836800": _moment(2020, 1, 1),
        "-1": _moment(1969, 12, 31, 23, 59, 59),
        "253402300799": _moment(9999, 12, 31, 23, 59, 59),
        "-62135596800": _moment(1, 1, 1),
        **_bad("253402300800", "-62135596801", "1577836800000", "9223372036854775807", "1.5", "1e9", "true", '""'),
    },
    "timestamp_ntz": _bad("0", "1577836800", "true", '""'),
    "string": {"7": "7", "true": "true", '{"a": [1]}': '{"a":[1]}', '""': "", '"1,5"': "1,5"},
    "binary": {
        '"QUI="': b"AB",
        '"QQ=="': b"A",
        '"QUJD"': b"ABC",
        '""': b"",
        r'"\u0051UI="': b"AB",
        r'"+\/+\/"': b"\xfb\xff\xbf",
        '"QR=="': b"A",
        '"QUI=QUI="': b"ABAB",
        r'"QUJD\n QUI=\n"': b"ABCAB",
        **_bad('"QUI"', '"Q U I ="', '"Q-_="', '"="', '"AA=A"', "1", "1234", "true", "[]"),
    },
}


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _strings(kind: str) -> dict[str, Any]:
    if kind == "binary":
        return {}
    if kind in STRINGLESS:
        return {_string(text): BAD for text in TEXTS[kind]}
    if kind in {"float", "double"}:  # a number is no string in JSON
        named = {"NaN", "Infinity", "+Infinity", "-Infinity", "+INF", "-INF"}
        return {_string(text): value if text in named else BAD for text, value in TEXTS[kind].items()}
    return {_string(text): value for text, value in TEXTS[kind].items()}


TOKENS: Final[dict[str, dict[str, Any]]] = {kind: _strings(kind) | own for kind, own in _TOKENS.items()}
"""By type: JSON values."""
