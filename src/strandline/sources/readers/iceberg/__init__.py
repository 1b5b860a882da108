"""The Iceberg reader: a table's snapshot, then the changes of each further one."""
