"""The two eras of MCP on one stdio: which of them a request belongs to, and what its results look like.

MCP 2026-07-28, "Backward Compatibility": "A request carrying modern per-request `_meta` is served statelessly"; "A
dual-era server MAY serve both eras concurrently on the same endpoint or process". So a request is read once, here, into
one that knows its revision; what `initialize` agreed on holds for the requests that say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from oubliette import __version__
from oubliette.protocol.members import DuplicateKeyError, members
from oubliette.protocol.revisions import Revision, spoken
from oubliette_client import source
from oubliette_client.messages import (
    INVALID_PARAMS,
    NULL,
    UNSUPPORTED_PROTOCOL_VERSION,
    Message,
    RequestError,
    object_untrusted,
)

Params = dict[str, str]
"""The members of a request's params, source text."""

PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO: Final = f'{{"name":"oubliette-client","version":"{__version__}"}}'
# Those that a request may name. The earlier ones are agreed on by `initialize`: to offer them here would send a client
# that asked for one of them round in circles.
STATELESS: Final = {revision.name: revision for revision in spoken("stdio") if revision.stateless}
# Without the envelope they are malformed, not unknown.
STATELESS_ONLY: Final = frozenset({"server/discover", "subscriptions/listen"})
_COMPLETE: Final = '"complete"'
_STAMP: Final = f'"resultType":{_COMPLETE},"_meta":{{"{SERVER_INFO_KEY}":{SERVER_INFO}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of the agent, and the revision that it is answered by. `id` is source text."""

    id: str
    method: str
    params: Params
    revision: Revision


def read(message: Message, id: str, agreed: Revision) -> Request:
    """Returns the request in `message`; `agreed` is the revision of those that name none.

    Raises `RequestError`: -32602 for params or an envelope that are not sound, -32022 for another revision.
    """
    params = message.fields()
    meta = _meta(params.get("_meta", NULL))
    # The one without the other is half an envelope: no earlier revision has either.
    enveloped = PROTOCOL_VERSION in meta or CLIENT_CAPABILITIES in meta or message.method in STATELESS_ONLY
    revision = _named(meta) if enveloped else agreed
    return Request(id=id, method=message.method, params=params, revision=revision)


def result(own: str) -> str:
    """Returns a result of the stateless era with the members `own`, JSON text without braces, and what each has."""
    return f"{{{_STAMP},{own}}}"


def completed(outcome: str) -> str:
    """Returns a `CallToolResult`, JSON text, as the stateless era has it. It may be a caller's and say anything.

    MCP: "The `result` MUST include a `resultType` field". One that the caller chose might have the agent ask its user
    for something (`input_required`), so it is always ours. All else that a result says stays.
    """
    try:
        found = members(outcome)
    except DuplicateKeyError:
        # Which of the two counts, nobody can say: it is shown like any value that is no result.
        return result(f'"content":[{{"type":"text","text":{source.quote(outcome)}}}]')
    return source.join({**found, "resultType": _COMPLETE, "_meta": _identified(found.get("_meta", NULL))})


def _identified(meta: str) -> str:
    """MCP: "servers SHOULD identify themselves in each result's `_meta`". One that is no object, agents refuse."""
    try:
        found = members(meta)
    except ValueError:
        found = {}
    if found.get(SERVER_INFO_KEY, NULL) == NULL:
        found[SERVER_INFO_KEY] = SERVER_INFO
    return source.join(found)


def _meta(value: str) -> dict[str, str]:
    """Agents of the earlier revisions send what they like: what is no object says nothing."""
    return object_untrusted(value, "params._meta") if value.startswith("{") else {}


def _named(meta: dict[str, str]) -> Revision:
    """MCP: "A request missing any required field is malformed; the server MUST reject it with … -32602"."""
    version = source.string(meta.get(PROTOCOL_VERSION))
    if version is None:
        raise RequestError(INVALID_PARAMS, f"params._meta must have {PROTOCOL_VERSION}, a string")
    if not meta.get(CLIENT_CAPABILITIES, "").startswith("{"):
        raise RequestError(INVALID_PARAMS, f"params._meta must have {CLIENT_CAPABILITIES}, an object")
    if version not in STATELESS:
        raise _unsupported(source.beginning(version))
    return STATELESS[version]


def _unsupported(requested: str) -> RequestError:
    supported = list(STATELESS)
    sentence = f"MCP {requested!r} is not spoken by _meta; these are: {', '.join(supported)}"
    return RequestError(UNSUPPORTED_PROTOCOL_VERSION, sentence, supported=supported, requested=requested)
