"""The socket door: what an agent's client says to its session (WIRE section 1)."""
