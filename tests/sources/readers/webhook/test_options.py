"""The options of a webhook: what goes together, and what is refused before anything listens."""

from __future__ import annotations

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError
from strandline.options import refusal_of_secrets, understood
from strandline.sources.readers.webhook.options import WebhookOptions, check_schema, clash

LOCAL = {"listen": "127.0.0.1:8090", "path": "/a"}
SCHEMA = Schema((Column("n", "bigint"),))


def of(**texts):
    """Understand the texts of options."""
    return understood("s", WebhookOptions, LOCAL | texts)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"listen": "8090"}, "host:port"),
        ({"listen": "127.0.0.1:99999"}, "host:port"),
        ({"listen": "0.0.0.0:80"}, "which others can reach"),
        ({"listen": "example.org:80", "token": "env:T"}, "which others can reach"),
        ({"path": "a"}, "begin with /"),
        ({"path": "/a?b"}, "begin with /"),
        ({"certificate": "/c.pem"}, "go together"),
        ({"max_request": "2MB", "max_waiting": "1MB"}, "at most max_waiting"),
        ({"max_request": "many"}, "number of bytes"),
        ({"timeout": "0"}, "timeout is 0"),
        ({"delimiter": ";"}, "does not go with format"),
        ({"headers": "authorization"}, "'authorization', which proves who sends"),
        ({"headers": "x-id, Cookie"}, "'cookie', which proves who sends"),
        ({"headers": "PROXY-AUTHORIZATION ,x-id"}, "'proxy-authorization', which proves who sends"),
        ({"format": "avro"}, "json, csv, text, bytes"),
    ],
)
def test_what_does_not_go_together_is_refused(texts, said):
    """Damage: a port is open to all, a token becomes part of rows, or an option does nothing."""
    with pytest.raises(DefinitionError, match=said):
        of(**texts)


def test_sizes_are_understood():
    """Damage: 64 MB are 64 bytes."""
    found = of(max_request="512kB", max_waiting="1 GB")
    assert (found.max_request, found.max_waiting) == (512 << 10, 1 << 30)


GUARDED = {"token": "env:T", "certificate": "/c.pem", "certificate_key_file": "/k.pem"}


@pytest.mark.parametrize(
    ("listens", "other", "refused"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", True),
        ("127.0.0.1:80", "127.0.0.1:81", False),
        ("127.0.0.1:80", "127.0.0.2:80", False),
        ("localhost:80", "127.0.0.1:80", True),
        ("localhost:80", "[::1]:80", True),
        ("[::1]:80", "[0:0:0:0:0:0:0:1]:80", True),
        ("127.0.0.1:80", "[::1]:80", False),
        ("0.0.0.0:80", "127.0.0.1:80", True),
        ("[::]:80", "localhost:80", True),
        ("[::]:80", "0.0.0.0:80", False),
        ("Example.org:80", "example.org:80", True),
        ("example.org:80", "127.0.0.1:80", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_sources_cannot_listen_at_one_address(listens, other, refused):
    """Damage: nothing can be sent to the second; or two sources that have nothing in common cannot both be."""
    one, two = (of(listen=listen, **GUARDED) for listen in (listens, other))
    assert clash(one, two) == (f"it listens at {other!r}; give option 'listen' another port" if refused else "")
    assert bool(clash(two, one)) is refused


def test_a_token_is_a_reference():
    """Damage: a secret is stored in the catalog."""
    assert refusal_of_secrets({"token": "s3cret"})
    assert not refusal_of_secrets({"token": "env:TOKEN", "certificate": "/c.pem", "certificate_key_file": "/k.pem"})


def test_an_included_column_must_be_one_of_the_schema():
    """Damage: a column is always NULL."""
    check_schema(of(), SCHEMA)
    check_schema(of(include_offset="n"), SCHEMA)
    with pytest.raises(DefinitionError, match="no column 'o'"):
        check_schema(of(include_offset="o"), SCHEMA)
    with pytest.raises(DefinitionError, match="one thing"):
        check_schema(of(include_offset="n", include_timestamp="n"), SCHEMA)
