"""Instances: what runs of an environment.  An instance does what a controller commands, and knows no catalog."""
