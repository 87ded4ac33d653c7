"""HOST:PORT in its one spelling, so that two of them are the same where their texts are."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

import idna

# RFC 1035, section 2.3.4: labels of 63 octets, names of 255, which leaves 253 characters.
MAX_NAME: Final = 253
_AUTHORITY: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/?#@\s]+))(?::([0-9]{1,5}))?\Z", re.ASCII)
# With the underscore that names of services and containers have.
_NAME: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")


class Address(NamedTuple):
    """Where a server listens: a name in lower case without the root's dot, or an IP address in its shortest form."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_name(self) -> bool:
        """Whether some resolver has to be asked what this is."""
        return ":" not in self.host and not _is_numeric(self.host)


def parse(text: str, default_port: int | None = None) -> Address:
    """Returns the address that `text`, HOST:PORT or [IPV6]:PORT, stands for. Raises `ValueError`.

    Names are compared as DNS does: without case, with or without the dot at the end, and in their ASCII form (IDNA).
    Numbers that only some resolvers take for an IP address (127.1, 0x7f000001, 2130706433) are refused.
    """
    match = _AUTHORITY.match(text)
    port = match and (match[3] or default_port)
    if match is None or port is None or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no HOST:PORT")
    try:
        return Address(str(IPv6Address(match[1])) if match[1] else _host(match[2]), int(port))
    except (AddressValueError, idna.IDNAError):
        raise ValueError(f"{text!r} has no host name or IP address") from None


def _host(text: str) -> str:
    name = text if text.isascii() else idna.encode(text, uts46=True).decode("ascii")
    name = name.lower().removesuffix(".")
    if _is_numeric(name):
        return str(IPv4Address(name))
    if len(name) > MAX_NAME or not _NAME.match(name):
        raise AddressValueError(name)
    return name


def _is_numeric(name: str) -> bool:
    """The URL standard, "ends in a number": what a resolver may take for an IPv4 address of some spelling."""
    last = name.rpartition(".")[2]
    return last.isdigit() or (last.startswith("0x") and all(char in "0123456789abcdef" for char in last[2:]))
