"""Which `Host` and `Origin` a request may carry (WIRE section 4): the defence against DNS rebinding."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?\Z", re.ASCII)
LOCAL: Final = ("localhost", "127.0.0.1", "[::1]")


class Hosts:
    """`bound` is the address that the daemon listens on; `hosts` and `origins` are configured beside the local ones.

    A host without a port stands for any port. An origin is allowed where its host is, or where it is configured.
    """

    def __init__(self, bound: str, hosts: Collection[str], origins: Collection[str]) -> None:
        bound = f"[{bound}]" if ":" in bound else bound
        self._hosts = frozenset(host.lower() for host in (*LOCAL, bound, *hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def allows_host(self, value: str) -> bool:
        """Whether a `Host` header's value is one of ours."""
        match = _HOST.match(value.lower())
        return match is not None and (match[1] in self._hosts or match[0] in self._hosts)

    def allows_origin(self, value: str) -> bool:
        """Whether an `Origin` header's value is one of ours; the opaque `null` never is."""
        origin = value.lower()
        if origin in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        is_plain = origin == f"{parts.scheme}://{parts.netloc}"
        return parts.scheme in ("http", "https") and is_plain and self.allows_host(parts.netloc)
