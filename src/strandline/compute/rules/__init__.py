"""One maintenance rule a file: frames (Δ, old, new) in, a frame out; rules never know about storage."""

__all__ = ["explanation"]
