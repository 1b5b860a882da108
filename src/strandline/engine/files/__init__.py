"""Files: decoding the files of a source on Spark."""
