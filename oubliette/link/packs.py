"""The tools of packs for the agents of one session, who need no key for them (WIRE section 1, `pack_tool`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw

from ot_pack.nearest import nearest
from ot_pack.state import State
from oubliette import errors
from oubliette.errors import InternalError, LimitExceeded, NotFound, OublietteError
from oubliette.log import get as get_logger
from oubliette.log import span
from oubliette.packs.registry import OT, told
from oubliette.packs.tools import PackTool, Progress
from oubliette.packs.views import agent_state
from oubliette.protocol import link
from oubliette.relay import QUOTED
from oubliette.runtimes.inside import WORKSPACE
from oubliette.session import Session
from oubliette.toolbox import ot
from oubliette.toolbox.call import Services
from oubliette.toolbox.declare import AnyTool

# A line of the link has at most 4 MiB and its allowance, and this one also its envelope.
MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024

log = get_logger(__name__)


class SessionPacks:
    """What the agents of a session may call of packs; `max_bytes` bounds a result."""

    def __init__(self, session: Session, services: Services, max_bytes: int) -> None:
        self._session = session
        self._projects = services.projects
        self._packs = services.packs
        self._setting = services.projects.project(session.project_id).packs
        self._max_bytes = max_bytes

    @property
    def config(self) -> bytes:
        """The notification that tells a client of the tools. What does not fit into a line is left out, and logged."""
        aliases = [alias for alias in self._packs.offer.settings.config.aliases if self._find(alias) is not None]
        entries: list[Raw] = []
        size = sum(map(len, aliases))
        for entry in self._entries():
            size += len(bytes(entry)) + 1
            if size > MAX_CONFIG_BYTES:
                log.error("there are more pack tools than a line takes", session=self._session.id, told=len(entries))
                break
            entries.append(entry)
        return link.pack_tools_config(entries, aliases)

    def begin(self, name: str, arguments: Raw, progress: Progress) -> Callable[[], Awaitable[bytes]]:
        """Returns the work that a call is. Raises `NotFound` for what is not offered ("is -32005")."""
        tool = self._find(name)
        if tool is None:
            known = ", ".join(nearest(name, [*self._ot, *(tool.identity for tool in self._tools())]))
            raise NotFound(f"there is no tool {name[:QUOTED]!r} for this agent; nearest: {known}", field="name")
        if isinstance(tool, PackTool):
            return partial(self._run, tool.identity, partial(tool.call, arguments, progress))
        return partial(self._run, tool.identity, partial(self._show, tool, arguments))

    def _find(self, name: str) -> AnyTool | PackTool | None:
        """Returns what is offered by this identity, MCP name or alias."""
        offer = self._packs.offer
        tool = self._ot.get(offer.target(name)) or offer.find(name)
        return None if isinstance(tool, PackTool) and tool.pack not in self._allowed else tool

    @property
    def _allowed(self) -> Collection[str]:
        return self._packs.allowed(self._setting)

    @property
    def _ot(self) -> dict[str, AnyTool]:
        return _OT if OT in self._allowed else {}

    async def _run(self, name: str, work: Callable[[], Awaitable[bytes]]) -> bytes:
        with span("pack_tool", session=self._session.id, tool=name):
            try:
                return self._bounded(name, await work())
            except OublietteError as error:
                log.debug("a pack tool failed", kind=error.kind, reason=error.message)
                return errors.as_tool_result(error)
            except Exception:
                # A mistake of ours in one tool must not end the link, and with it the agent's other calls.
                log.exception("a pack tool failed for a reason of our own")
                return errors.as_tool_result(InternalError("the tool failed for a reason that is in the daemon's log"))

    def _bounded(self, name: str, result: bytes) -> bytes:
        """A client gives a link up whose lines are longer than it takes: the result is refused instead."""
        if len(result) > self._max_bytes:
            raise LimitExceeded(
                f"the result of {name} has {len(result)} bytes, and a message on this link at most {self._max_bytes} "
                "(relay.max_message_bytes): ask for less at once"
            )
        return result

    async def _show(self, declared: AnyTool, arguments: Raw) -> bytes:
        decoded = declared.decode(arguments)
        return msgspec.json.encode(await ot.answer(declared, self._state, decoded))

    def _state(self) -> State:
        own = [declared.shown for declared in self._declared()]
        return agent_state(self._packs, own, self._allowed, self._session.declaration, self._folder())

    def _folder(self) -> str:
        """The folder of the workspace as the agent finds it; whoever attaches an external one is on this host."""
        if not self._session.is_external and self._session.runtime != "process":
            return WORKSPACE
        project = self._projects.project(self._session.project_id)
        return str(self._projects.folder(self._projects.workspace(project, self._session.workspace_id)))

    def _entries(self) -> Iterator[Raw]:
        yield from (_OT_TOLD[declared.identity] for declared in self._declared())
        yield from (self._packs.offer.told[tool.identity] for tool in self._tools())

    def _declared(self) -> Collection[AnyTool]:
        return ot.FOR_AGENTS if OT in self._allowed else ()

    def _tools(self) -> Iterator[PackTool]:
        allowed = self._allowed
        return (tool for tool in self._packs.offer.tools.values() if tool.pack in allowed)


_OT: Final = {name: tool for tool in ot.FOR_AGENTS for name in (tool.identity, tool.name)}
_OT_TOLD: Final = {tool.identity: told(OT, tool.shown.tool, tool.entry) for tool in ot.FOR_AGENTS}
