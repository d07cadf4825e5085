"""The one description of each setting, a file a command. Imports neither torch nor ray."""
