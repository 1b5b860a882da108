"""Load generators: sources whose rows are computed, at a rate, for demonstrations, tests and benchmarks."""
