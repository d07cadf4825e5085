"""The Arrow schema of every table, one file for each command."""
