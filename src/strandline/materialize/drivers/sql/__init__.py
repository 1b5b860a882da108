"""SQL: what all endpoints that speak SQL share; what differs between them is a `dialect.Dialect`.

Pattern 1, the endpoint is authoritative: its rows and its checkpoint are committed in one transaction.
"""
