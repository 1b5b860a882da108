"""TPC-H-derived views: their queries, the data of `tpchgen-cli`, streams of changes, Spark beside them."""

__all__ = ["spread"]
