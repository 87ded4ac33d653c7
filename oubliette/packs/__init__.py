"""Packs of tools beside the daemon's own: local files, proxied servers, and what `ot` shows of them all."""
