"""The sink of a view: mint, write, append; retract what is stored, insert what is computed."""

__all__ = ["actor", "correction"]
