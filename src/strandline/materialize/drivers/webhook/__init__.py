"""A webhook as an endpoint: a program is sent what changed, in batches, by HTTP."""
