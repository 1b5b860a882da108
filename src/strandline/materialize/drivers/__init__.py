"""The drivers that ship with Strandline, one room an endpoint, and what some of them share."""
