"""The simulation: one thread, one list of choices, every I/O a point at which something may go wrong."""
