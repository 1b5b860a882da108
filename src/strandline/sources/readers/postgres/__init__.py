"""The PostgreSQL reader: committed changes of a publication, by a logical slot, and the tables as they were before."""
