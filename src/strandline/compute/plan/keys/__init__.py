"""Keys of queries: the columns by which a query falls into parts."""
