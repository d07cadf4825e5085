"""`tempscale tune` and `tempscale export`: choose a temperature, and write a checkpoint with it."""
