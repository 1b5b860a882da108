"""An engine over Python lists, and what belongs to it."""
