"""`python -m oubliette` runs the daemon (WIRE section 8)."""

from oubliette.cli.main import main

main()
