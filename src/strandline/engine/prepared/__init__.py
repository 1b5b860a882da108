"""Plans that Spark plans and compiles once and runs again over other rows: what a small window costs."""
