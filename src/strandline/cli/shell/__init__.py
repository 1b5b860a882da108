"""The shell: `strandline sql` at a terminal.

The modules without a terminal in them are plain functions: `texts`, `tables`, `completion`, `history`, `commands`.
"""
