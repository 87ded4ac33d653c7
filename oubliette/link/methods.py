"""What an agent asks of the daemon itself, beside its caller's tools (WIRE section 1).

`begin` decides, without waiting, and returns the work that is left. A key is looked at there and let go: the work knows
the principal alone, so that no key outlives the line that it came in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from oubliette import errors
from oubliette.errors import Forbidden, InternalError, InvalidParams, LimitExceeded, OublietteError, Unauthorized
from oubliette.link.children import Children
from oubliette.link.packs import SessionPacks
from oubliette.log import get as get_logger
from oubliette.log import span
from oubliette.packs.tools import Progress
from oubliette.protocol import link, mcp_results
from oubliette.protocol.jsonrpc import Message
from oubliette.protocol.revisions import NEWEST
from oubliette.relay import QUOTED
from oubliette.session import Session
from oubliette.tokens import Principal
from oubliette.toolbox import box
from oubliette.toolbox.call import Call, Services
from oubliette.toolbox.declare import AnyTool

Work = Callable[[], Awaitable[bytes]]
"""The rest of a request: returns the result, JSON text, or raises an `OublietteError`."""
ParamsT = TypeVar("ParamsT", bound=Struct)

# The one that reports on its way.
_REPORTING: Final = "pack_tool"
METHODS: Final = frozenset(
    {_REPORTING, "session_message", "session_events", "project_list", "oubliette_tools", "oubliette_call_tool"}
)
# Of all links of a session. Each holds its arguments, a line at most, so this is 400 MiB by default; an agent that
# waits for a hundred sessions at once is served.
MAX_WORKING: Final = 100
# WIRE section 6: "not offered over `oubliette_tools` (an agent is nobody's caller)".
_NOT_OFFERED: Final = "caller_tool"

_pack_tool_decoder: Final = msgspec.json.Decoder(link.PackToolParams)
_session_message_decoder: Final = msgspec.json.Decoder(link.SessionMessageParams)
_session_events_decoder: Final = msgspec.json.Decoder(link.SessionEventsParams)
_project_list_decoder: Final = msgspec.json.Decoder(link.ProjectListParams)
_tools_decoder: Final = msgspec.json.Decoder(link.ToolsParams)
_call_tool_decoder: Final = msgspec.json.Decoder(link.CallToolParams)

log = get_logger(__name__)


class DaemonMethods:
    """The daemon's answers to the agents of one session. A result of a tool has at most `max_bytes`."""

    def __init__(self, session: Session, services: Services, max_bytes: int) -> None:
        self._session = session
        self._services = services
        self._max_bytes = max_bytes
        self._working = 0
        self._children = Children(session, services, max_bytes)
        self.packs = services.packs
        self.session_packs = SessionPacks(session, services, max_bytes)
        self._methods: dict[str, Callable[[Message], Work]] = {
            "session_message": self._session_message,
            "session_events": self._session_events,
            "project_list": self._project_list,
            "oubliette_tools": self._list_tools,
            "oubliette_call_tool": self._call_tool,
        }
        assert self._methods.keys() | {_REPORTING} == METHODS

    def begin(self, message: Message, progress: Progress) -> Work:
        """Takes a request whose method is one of `METHODS`; `end` must follow when it has been answered.

        `progress` is told how far it is meanwhile. Raises `InvalidParams`, `NotFound` for a pack's tool that is not
        offered, `Unauthorized`, `LimitExceeded` where too many are under way or too many keys of this session were
        refused, and `Conflict` in a session that is ending.
        """
        self._session.check_open()
        if self._working >= MAX_WORKING:
            raise LimitExceeded(f"{MAX_WORKING} requests of this session are under way; wait for one of them to end")
        reports = message.method == _REPORTING
        work = self._pack_tool(message, progress) if reports else self._methods[message.method](message)
        self._working += 1
        return work

    def end(self) -> None:
        """Says that a request which `begin` took is no more."""
        self._working -= 1

    def _pack_tool(self, message: Message, progress: Progress) -> Work:
        params = decode_params(_pack_tool_decoder, message)
        return self.session_packs.begin(params.name, params.arguments, progress)

    def _session_message(self, message: Message) -> Work:
        return partial(self._children.message, decode_params(_session_message_decoder, message))

    def _session_events(self, message: Message) -> Work:
        return partial(self._children.events, decode_params(_session_events_decoder, message))

    def _project_list(self, message: Message) -> Work:
        decode_params(_project_list_decoder, message)
        return self._own_project

    async def _own_project(self) -> bytes:
        """ "`project_list`: this session's own project"; others do not exist for an agent without a key."""
        project = self._services.projects.project(self._session.project_id)
        listed = link.ListedProject(
            project_id=project.project_id,
            name=project.name,
            description=project.description,
            created_at=project.created_at,
        )
        return link.project_list_result([listed])

    def _list_tools(self, message: Message) -> Work:
        principal = self._principal(decode_params(_tools_decoder, message).api_key)
        return partial(self._offered_to, principal)

    async def _offered_to(self, principal: Principal) -> bytes:
        return link.tools_result([declared.entry for declared in _offered(principal)])

    def _call_tool(self, message: Message) -> Work:
        params = decode_params(_call_tool_decoder, message)
        principal = self._principal(params.api_key)
        return partial(self._run, principal, _find(params.tool, principal), params.arguments)

    def _principal(self, key: str | None) -> Principal:
        """ "The key and its scope are checked on every call": nothing is remembered of the call before."""
        inside = self._session.id
        try:
            return self._services.gate.admit(key or "", door="link", source=inside, inside=inside)
        except Unauthorized:
            sentence = "the key of the call (OUBLIETTE_API_KEY) is missing, unknown, revoked or expired"
            raise Unauthorized(sentence) from None

    async def _run(self, principal: Principal, declared: AnyTool, arguments: Raw) -> bytes:
        call = Call(principal=principal, services=self._services, door="link", inside=self._session.id)
        with (
            span("oubliette_call_tool", session=self._session.id, tool=declared.name, token_id=principal.token_id),
            self._services.gate.lease(principal),
        ):
            return await self._outcome(call, declared, arguments)

    async def _outcome(self, call: Call, declared: AnyTool, arguments: Raw) -> bytes:
        try:
            return self._bounded(declared, await box.run(call, declared, arguments))
        except (Unauthorized, Forbidden):
            raise
        except OublietteError as error:
            log.debug("a tool failed", kind=error.kind, reason=error.message)
            return errors.as_tool_result(error)
        except Exception:
            # A mistake of ours in one tool must not end the link, and with it the agent's other calls.
            log.exception("a tool failed for a reason of our own")
            return errors.as_tool_result(InternalError("the tool failed for a reason that is in the daemon's log"))

    def _bounded(self, declared: AnyTool, result: bytes) -> bytes:
        """A client gives a link up whose lines are longer than it takes: the result is refused instead."""
        whole = mcp_results.call_tool_result(result, NEWEST) if declared.is_structured else result
        if len(whole) > self._max_bytes:
            raise LimitExceeded(
                f"{declared.name} was carried out, but its result has {len(whole)} bytes, and a message on this link "
                f"at most {self._max_bytes} (relay.max_message_bytes): ask for less at once"
            )
        return whole


def decode_params(decoder: msgspec.json.Decoder[ParamsT], message: Message) -> ParamsT:
    """Returns the params of a request. Raises `InvalidParams` in words that quote no value."""
    try:
        return decoder.decode(message.params or link.EMPTY_OBJECT)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"params of {message.method!r}: {error}", field="params") from None


def _offered(principal: Principal) -> list[AnyTool]:
    return [declared for declared in box.offered(principal.scope) if declared.pack != _NOT_OFFERED]


def _find(name: str, principal: Principal) -> AnyTool:
    """A tool that is known but that the scope does not allow is `box.run`'s to refuse, with -32002."""
    declared = box.TOOLS.get(name)
    if declared is None or declared.pack == _NOT_OFFERED:
        names = ", ".join(tool.name for tool in _offered(principal))
        raise InvalidParams(f"there is no tool {name[:QUOTED]!r}; there are: {names}", field="tool")
    return declared
