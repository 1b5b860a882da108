"""The wire: the Flow materialization protocol over stdin and stdout, in both directions.

Any program that speaks it is an endpoint of ours, and each of our drivers can be served to any runtime that speaks it.
"""

__all__ = ["kind", "options", "serve"]
