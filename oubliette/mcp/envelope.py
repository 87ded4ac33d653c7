"""What a request says of itself: its revision, and in 2026-07-28 all that used to be settled by `initialize`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from oubliette.errors import HeaderMismatch, InvalidParams, UnsupportedProtocolVersion
from oubliette.protocol import mcp_headers
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.mcp import CLIENT_CAPABILITIES, PROTOCOL_VERSION, AnyParams, Level, RequestMeta
from oubliette.protocol.revisions import BY_NAME, REVISIONS, Revision

Headers = Mapping[bytes, bytes]
ParamsT = TypeVar("ParamsT", bound=Struct)

SUPPORTED: Final = [revision.name for revision in reversed(REVISIONS) if revision.http]
_NO_META: Final = RequestMeta()


class _Said(Struct, frozen=True):
    """Params of which only the keys of `_meta` are looked at."""

    meta: dict[str, Raw] = msgspec.field(name="_meta", default_factory=dict)


class Envelope(Struct, frozen=True, kw_only=True):
    """A stateless request's own words: `level` is the least level of log messages that it wants, None for none."""

    revision: Revision
    level: Level | None
    progress_token: Raw | UnsetType
    capabilities: frozenset[str]


def is_stateless(message: Message, headers: Headers) -> bool:
    """Whether a request is of a revision without sessions: its header says so, or its `_meta` does.

    MCP 2026-07-28, "Backward Compatibility": "A request carrying modern per-request `_meta` is served statelessly".
    """
    named = BY_NAME.get(headers.get(mcp_headers.VERSION, b"").decode("latin-1"))
    if named is not None and named.stateless:
        return True
    return says_its_revision(message)


def says_its_revision(message: Message) -> bool:
    """Whether a request carries its revision in its `_meta`, well-formed or not."""
    source = bytes(message.params)
    # Most requests of the earlier revisions are told apart without a second decoding. The key has a slash, which some
    # encoders escape; this part of it can only be hidden by a `\u`.
    if b"protocolVersion" not in source and b"\\u" not in source:
        return False
    try:
        return PROTOCOL_VERSION in msgspec.json.decode(source, type=_Said).meta
    except msgspec.ValidationError:
        return False


def open_envelope(message: Message, headers: Headers | None) -> Envelope:
    """Returns what a stateless request says of itself, checked against its headers where the transport has any.

    Raises `InvalidParams`, `HeaderMismatch` or `UnsupportedProtocolVersion`, in this order, as the official SDKs do.
    """
    params = params_of(AnyParams, message)
    meta = _NO_META if params.meta is UNSET else params.meta
    capabilities = _check_members(meta)
    if headers is not None:
        _check_headers(message, params, meta, headers)
    revision = BY_NAME.get(meta.protocol_version)
    if revision is None or not revision.stateless:
        raise UnsupportedProtocolVersion(meta.protocol_version, SUPPORTED)
    return Envelope(
        revision=revision, level=meta.log_level, progress_token=meta.progress_token, capabilities=capabilities
    )


def meta_of(message: Message) -> RequestMeta:
    """Returns the `_meta` of a request of the earlier revisions.

    They demand nothing of it, and most requests are answered without a look at it: a malformed one is as good as none.
    """
    try:
        params = params_of(AnyParams, message)
    except InvalidParams:
        return _NO_META
    return _NO_META if params.meta is UNSET else params.meta


def params_of(kind: type[ParamsT], message: Message) -> ParamsT:
    """Returns a message's params. Raises `InvalidParams` in words."""
    try:
        return msgspec.json.decode(message.params or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"params of {message.method!r}: {error}", field="params") from None


def _check_members(meta: RequestMeta) -> frozenset[str]:
    """ "A request missing any required field is malformed"."""
    if not isinstance(meta.protocol_version, str):
        raise _malformed(PROTOCOL_VERSION, "a string")
    if not isinstance(meta.client_capabilities, dict):
        raise _malformed(CLIENT_CAPABILITIES, "an object")
    return frozenset(meta.client_capabilities)


def _malformed(key: str, kind: str) -> InvalidParams:
    return InvalidParams(f"params._meta must have {key!r}, {kind}", field=f"params._meta.{key}")


def _check_headers(message: Message, params: AnyParams, meta: RequestMeta, headers: Headers) -> None:
    """ "Servers … MUST reject requests where the values specified in the headers do not match" the body."""
    _check_header("MCP-Protocol-Version", headers.get(mcp_headers.VERSION), meta.protocol_version)
    _check_header("Mcp-Method", headers.get(mcp_headers.METHOD), message.method)
    member = mcp_headers.NAMED_BY.get(message.method)
    named = UNSET if member is None else getattr(params, member)
    if named is not UNSET:
        _check_header("Mcp-Name", headers.get(mcp_headers.NAME), named, encoded=True)


def _check_header(name: str, value: bytes | None, expected: Any, *, encoded: bool = False) -> None:
    if value is None:
        raise HeaderMismatch(f"the header {name} is missing; the body says {expected!r}")
    said = mcp_headers.decode_untrusted(value) if encoded else value.decode("latin-1")
    if said != expected:
        raise HeaderMismatch(f"the header {name} says {value.decode('latin-1')!r}, the body {expected!r}")
