"""The key of an agent that may use Oubliette's own tools (WIRE section 1, `OUBLIETTE_API_KEY`).

It goes into the requests that need it, on the one socket, and nowhere else: not into a log, an error or a `repr`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from oubliette_client import source
from oubliette_client.stdio import note

VARIABLE: Final = "OUBLIETTE_API_KEY"


class ApiKey:
    """A key that only `sign` gives away."""

    __slots__ = ("_member",)

    def __init__(self, key: str) -> None:
        self._member = f'"api_key":{source.quote(key)}'

    def __repr__(self) -> str:
        return "ApiKey(…)"

    def sign(self, params: str) -> str:
        """Returns a request's params, the text of a JSON object that begins with its brace, with the key in them."""
        separator = "" if params == "{}" else ","
        return f"{{{self._member}{separator}{params[1:]}"


def from_environment(environ: Mapping[str, str]) -> ApiKey | None:
    """Returns the key in `environ`, None where there is none. One that cannot be a key is said on stderr."""
    key = environ.get(VARIABLE, "").strip()
    if not key:
        return None
    # What is no text has no spelling in JSON, and the daemon could not say which request it was in.
    if not (key.isascii() and key.isprintable()):
        note(f"{VARIABLE} is not a key: Oubliette's own tools are left out")
        return None
    return ApiKey(key)
