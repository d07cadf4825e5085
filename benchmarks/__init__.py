"""Measurements, side by side with what a user would pick instead. `make bench` runs all of them."""
