"""HOST:PORT: what is the same, and what is none."""

from __future__ import annotations

import pytest

from oubliette.link.addresses import MAX_NAME, Address, parse


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("api.example.com:443", "api.example.com", 443),
        ("API.Example.COM:443", "api.example.com", 443),
        ("api.example.com.:443", "api.example.com", 443),
        ("bücher.example:443", "xn--bcher-kva.example", 443),
        ("BÜCHER.example:443", "xn--bcher-kva.example", 443),
        ("XN--bcher-kva.example:443", "xn--bcher-kva.example", 443),
        ("my_service:80", "my_service", 80),
        ("localhost:00080", "localhost", 80),
        ("127.0.0.1:8000", "127.0.0.1", 8000),
        ("[::1]:8000", "::1", 8000),
        ("[0:0:0:0:0:0:0:1]:8000", "::1", 8000),
        ("[2001:DB8::A]:1", "2001:db8::a", 1),
        ("a:65535", "a", 65535),
    ],
)
def test_an_address_has_one_spelling(text: str, host: str, port: int) -> None:
    assert parse(text) == Address(host, port)
    assert parse(str(parse(text))) == parse(text)


NO_ADDRESS = """
: a a: :1 a:0 a:65536 a:x a:-1 a:+1 a:1:2 a:١
::1:80 [::1] [::1%lo]:80 []:80 [127.0.0.1]:80 [::g]:80 [::1:80 a]:80
user@a:80 a/b:80 a?:80 a#:80 http://a:80 *:80 *.example.com:443
a..b:80 .a:80 a..:80 -a:80 a-:80 a\0:80
127.1:80 2130706433:80 0x7f000001:80 0x7f.1:80 127.0.0.01:80 1.2.3.256:80 1.2.3.4.5:80 0x:1
"""


@pytest.mark.parametrize("text", [*NO_ADDRESS.split(), "", "a:1 ", " a:1", "a b:1", "a\n:80", "a:80\n"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no HOST:PORT|no host name"):
        parse(text)


@pytest.mark.parametrize(("length", "is_one"), [(63, True), (64, False)])
def test_a_label_is_bounded(length: int, is_one: bool) -> None:
    assert _is_address("x" * length + ":1") == is_one


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_name_is_bounded(over: int) -> None:
    name = ".".join(["x" * 60] * 5)[: MAX_NAME + over]
    assert _is_address(f"{name}:1") == (over <= 0)


def _is_address(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def test_a_default_port_is_for_what_has_none() -> None:
    assert parse("a", 80) == parse("a:80")
    assert parse("a:81", 80) == parse("a:81")
    assert parse("[::1]", 80) == Address("::1", 80)
    with pytest.raises(ValueError, match="no HOST:PORT"):
        parse("a:", 80)


def test_an_ipv4_address_in_ipv6_is_another_address() -> None:
    assert parse("[::ffff:127.0.0.1]:80") != parse("127.0.0.1:80")


@pytest.mark.parametrize(("text", "is_name"), [("a.b:1", True), ("127.0.0.1:1", False), ("[::1]:1", False)])
def test_a_name_is_told_from_an_address(text: str, is_name: bool) -> None:
    assert parse(text).is_name == is_name
