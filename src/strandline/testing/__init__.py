"""Contracts, doubles and the simulation kernel, for authors of stores, readers and drivers; `view`, for all of views.

The contracts are suites to subclass, as ``from strandline.testing import driver_contract`` gives them.  What a name
needs is imported when the name is first used.
"""

from typing import TYPE_CHECKING

from strandline import lazily

if TYPE_CHECKING:
    from strandline.testing.contracts import blob_contract, consensus_contract, reader_contract
    from strandline.testing.contracts.drivers import driver_contract
    from strandline.testing.trial import view

__all__ = ["blob_contract", "checking", "consensus_contract", "driver_contract", "reader_contract", "view"]

__getattr__ = lazily.names(
    __name__,
    {
        **dict.fromkeys(("blob_contract", "consensus_contract", "reader_contract"), "strandline.testing.contracts"),
        "driver_contract": "strandline.testing.contracts.drivers",
        "view": "strandline.testing.trial",
    },
)
