"""TPC-H-derived views: their queries, the data of `tpchgen-cli`, streams of changes, plain Spark beside them."""

__all__ = ["contents"]
