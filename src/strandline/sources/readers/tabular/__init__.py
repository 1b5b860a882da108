"""What readers share whose rows come as Arrow: declared columns among those of a table, and rows in bounded memory."""
