"""The JSON bodies of the plain routes, whose values stay source text on their way to the tools."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Raw

from oubliette.errors import InvalidParams, InvalidRequest, ParseError
from oubliette.http.request import Request
from oubliette.protocol import members
from oubliette.protocol.jsonrpc import MalformedError, check_text


def members_of(request: Request, allowed: Collection[str]) -> dict[str, Raw]:
    """Returns the members of a request's body. Raises where it is no object, or holds others than `allowed`."""
    found = _members(request.body)
    for name in found:
        if name not in allowed:
            raise InvalidParams(f"unknown field {name!r}; allowed: {', '.join(sorted(allowed))}", field=name)
    return {name: Raw(source.encode()) for name, source in found.items()}


def _members(body: bytes) -> dict[str, str]:
    try:
        check_text(body)
        return members.members(body.decode())
    except MalformedError as error:
        raise ParseError(str(error)) from None
    except members.DuplicateKeyError as error:
        raise InvalidRequest(f"the key {str(error)!r} stands twice", field=str(error)) from None
    except members.NotAnObjectError:
        raise InvalidRequest("the body must be a JSON object") from None
    except members.NotJSONError as error:
        raise ParseError(f"the body is not JSON: {error}") from None
