"""MariaDB: a server, by a client in pure Python."""
