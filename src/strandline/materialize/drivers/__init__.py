"""The drivers that ship with Strandline, one endpoint a file."""
