"""Bytes to messages and back: no trio, no I/O, no clock. Imports nothing of the rest of oubliette."""
