"""Functions as a project brings them."""

from pyspark.sql.functions import udf


@udf("bigint", useArrow=False)
def twice(n):
    """Return a number twice."""
    return 2 * n


@udf("bigint", useArrow=True)
def thrice(n):
    """Return a number three times; its rows come as Arrow."""
    return 3 * n
