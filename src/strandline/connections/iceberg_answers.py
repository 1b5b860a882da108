"""What it means if a catalog or a store of Iceberg tables gives no answer, or refuses to give one.

pyiceberg asks some catalogs by the client of another project (Glue by botocore, Hive by Thrift, SQL by SQLAlchemy), and
hands out that client's errors as they are.  None of these clients has to be installed.

Source: pyiceberg's documentation (catalogs).
"""

from __future__ import annotations

from typing import Final

from pyiceberg.exceptions import ForbiddenError, OAuthError, RESTError, UnauthorizedError

from strandline.errors import Unavailable, first_line

_REFUSALS: Final = (UnauthorizedError, ForbiddenError, OAuthError)
_CLIENTS: Final = frozenset({"botocore", "hive_metastore", "sqlalchemy", "thrift"})
_REFUSED: Final = frozenset({"ClientError", "NoCredentialsError"})
"""Botocore's: the service answered with an error, or there is nothing to log in with."""


def failed(error: Exception) -> bool:
    """Whether this is an error of asking, and not of this program."""
    return isinstance(error, RESTError | OSError) or not _CLIENTS.isdisjoint(
        each.__module__.partition(".")[0] for each in type(error).__mro__
    )


def unavailable(asked: str, error: Exception) -> Unavailable:
    """Return what to say of an error of asking ``asked``."""
    refused = isinstance(error, _REFUSALS) or not _REFUSED.isdisjoint(each.__name__ for each in type(error).__mro__)
    if refused:
        return Unavailable(f"{asked} refuses to answer, so check the login and its rights: {first_line(error)}")
    return Unavailable(f"{asked} does not answer: {first_line(error)}")
