"""The contracts of drivers: what every endpoint must do, with whatever a runtime says to it."""
