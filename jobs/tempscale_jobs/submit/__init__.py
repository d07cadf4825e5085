"""A command as a Ray job: what is sent, how it is watched, where the head is."""
