"""What outside authors need to test against us: contracts, doubles, the simulation kernel."""
