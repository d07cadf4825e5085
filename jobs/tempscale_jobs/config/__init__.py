"""The settings of all commands, a file for each command. Imports neither torch nor ray."""
