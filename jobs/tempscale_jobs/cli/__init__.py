"""The command line: options in, a configuration out, an exit code at the end."""
