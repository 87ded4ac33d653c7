"""The daemon's own tools, one module a pack (WIRE section 6)."""
