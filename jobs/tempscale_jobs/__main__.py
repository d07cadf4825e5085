"""`python -m tempscale_jobs` is the `tempscale` command."""

from __future__ import annotations

from tempscale_jobs.cli.app import main

main()
