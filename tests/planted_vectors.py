"""Sizes of the small indexes in which faults are planted for `tempscale verify`."""

WINDOW = 96
ROWS = 120
