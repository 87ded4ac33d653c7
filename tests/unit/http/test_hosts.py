"""Which Host and Origin are ours (WIRE section 4, HAZARDS T1 and T3)."""

from __future__ import annotations

import pytest

from oubliette.http.hosts import Hosts

CONFIGURED = Hosts("192.0.2.7", ("Relay.Example", "pinned.example:8443", "[2001:db8::1]"), ("https://app.example",))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        "127.0.0.1:65535",
        "[::1]",
        "[::1]:8080",
        "192.0.2.7:8080",
        "relay.example",
        "RELAY.example:9",
        "pinned.example:8443",
        "[2001:DB8::1]:1",
    ],
)
def test_hosts_of_ours(host: str) -> None:
    assert CONFIGURED.allows_host(host)
    assert CONFIGURED.allows_origin(f"http://{host}")
    assert CONFIGURED.allows_origin(f"https://{host}")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.com",
        "localhost.evil.com",
        "evil.com:8080",
        "localhost.",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0.0.0.0",
        "pinned.example",
        "pinned.example:443",
        "user@localhost",
        "localhost@evil.com",
        "localhost:80:80",
        "localhost:",
        "localhost:x",
        "localhost:123456",
        "localhost/",
        "localhost?",
        "localhost#",
        "localhost\\",
        "localhost evil.com",
        "localhost, evil.com",
        "localhost\n",
        "localhost\0",
        "::1",
        "[::1",
        "[::1]x",
        "[::2]",
        "localhoſt",
        "１２７.0.0.1",
    ],
)
def test_hosts_of_others(host: str) -> None:
    assert not CONFIGURED.allows_host(host)
    assert not CONFIGURED.allows_origin(f"http://{host}")


@pytest.mark.parametrize("origin", ["https://app.example", "HTTPS://APP.EXAMPLE", "http://localhost:3000"])
def test_origins_of_ours(origin: str) -> None:
    assert CONFIGURED.allows_origin(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "localhost",
        "//localhost",
        "http:localhost",
        "http://localhost/",
        "http://localhost/path",
        "http://localhost?q",
        "http://localhost#f",
        "http://user@localhost",
        "http://localhost http://localhost",
        "http://localhost, http://evil.com",
        "ftp://localhost",
        "file://",
        "file://localhost",
        "https://app.example:8443",
        "http://app.example",
        "https://app.example.evil.com",
        "http://[::1",
        "http://localhost\t",
        "http://loc\nalhost",
    ],
)
def test_origins_of_others(origin: str) -> None:
    assert not CONFIGURED.allows_origin(origin)


def test_the_bound_address_may_be_of_ipv6() -> None:
    hosts = Hosts("2001:db8::5", (), ())
    assert hosts.allows_host("[2001:db8::5]:8080")
    assert not hosts.allows_host("2001:db8::5")
