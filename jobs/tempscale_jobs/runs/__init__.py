"""The run folder: storage, lock, resuming, progress."""
