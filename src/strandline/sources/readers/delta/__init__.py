"""The Delta Lake reader: a table's snapshot, then the changes of each version."""
