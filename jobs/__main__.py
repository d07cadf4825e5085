"""`python -m jobs` is the `tempscale` command."""

from jobs.cli import main

main()
