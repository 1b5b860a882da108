"""Contracts: the suites that every implementation of a protocol passes."""
