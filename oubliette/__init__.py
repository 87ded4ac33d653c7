"""Oubliette: run an agent in a container and let it call tools of the application that started it."""

__version__ = "0.1.0"
