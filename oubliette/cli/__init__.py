"""The command line (WIRE section 8)."""
