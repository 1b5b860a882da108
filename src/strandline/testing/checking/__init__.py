"""`strandline driver check`: any author's driver, held against the contract; and the contract, against defects."""

__all__ = ["check"]
