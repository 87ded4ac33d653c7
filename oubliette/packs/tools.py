"""A pack tool, wherever it lives: in a file of this machine or in a proxied MCP server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Final

import msgspec
import trio
from msgspec import Raw, Struct

from ot_pack import signatures
from ot_pack.flow import writable
from ot_pack.local import LocalTool
from ot_pack.state import PROXY, Entry
from oubliette.errors import InvalidParams, LimitExceeded, OublietteError, ToolTimeout
from oubliette.log import get as get_logger
from oubliette.protocol.names import mcp_name
from oubliette.protocol.nesting import too_deep
from oubliette.protocol.results import call_tool_result, error_result
from oubliette.upstreams.calls import MAX_RESULT_BYTES, MAX_RESULT_DEPTH
from oubliette.upstreams.tools import UpstreamTool
from oubliette.upstreams.upstreams import Upstreams

Progress = Callable[[float, float | None, str | None], None]
"""Takes how far a call is: what is done, of how much, and in words. It does not wait."""

# A function that has not returned by then is given up; in a thread it runs on to its own end. In seconds.
LOCAL_SECONDS: Final = 60.0
# Functions that block, of all packs at once. One that hangs holds its thread, never the daemon's other threads.
LOCAL_THREADS: Final = 16
# Of the words of an error: what an agent reads in one piece.
MAX_ERROR_CHARACTERS: Final = 16 * 1024

log = get_logger(__name__)


class PackTool(ABC):
    """A tool that is not the daemon's own: `name` of `pack`. `entry` is its MCP Tool but for the name."""

    def __init__(self, pack: str, name: str, entry: dict[str, Any]) -> None:
        self.pack = pack
        self.name = name
        self.entry = entry
        self.identity = f"{pack}.{name}"
        self.mcp_name = mcp_name(pack, name)

    @property
    @abstractmethod
    def shown(self) -> Entry:
        """What `ot` shows of it."""

    @abstractmethod
    async def call(self, arguments: Raw, progress: Progress) -> bytes:
        """Runs it on JSON arguments; returns a `CallToolResult`, JSON text. Raises an `OublietteError`."""


class LocalPackTool(PackTool):
    """A function of a local pack. One that is not async runs in a thread of `limiter`."""

    def __init__(self, pack: str, tool: LocalTool, limiter: trio.CapacityLimiter) -> None:
        super().__init__(pack, tool.name, {"description": tool.description, "inputSchema": tool.input_schema})
        self._tool = tool
        self._limiter = limiter
        self._decoder: msgspec.json.Decoder[Struct] = msgspec.json.Decoder(tool.arguments)

    @property
    def shown(self) -> Entry:
        return self._tool.entry

    async def call(self, arguments: Raw, progress: Progress) -> bytes:
        """Runs the function; what it raises is a result that says so (`isError`).

        Raises `InvalidParams`, `ToolTimeout` after `LOCAL_SECONDS`, and `LimitExceeded` for a result that is too long
        or nested too deep.
        """
        decoded = self._decode(arguments)
        with trio.move_on_after(LOCAL_SECONDS):
            try:
                return await self._run(decoded)
            except OublietteError:
                raise
            # A pack must not end the daemon: not with `sys.exit`, nor by what comes with a cancellation.
            except (Exception, SystemExit, BaseExceptionGroup) as error:
                return self._failed(error)
        raise ToolTimeout(f"{self.identity} had not returned after {LOCAL_SECONDS:g} s; it may still be running")

    def _decode(self, arguments: Raw) -> dict[str, Any]:
        try:
            return msgspec.structs.asdict(self._decoder.decode(arguments))
        except msgspec.DecodeError as error:
            raise InvalidParams(f"{self.identity}: {error}", field="arguments") from None

    async def _run(self, arguments: dict[str, Any]) -> bytes:
        if self._tool.is_async:
            return self._result(await self._tool.function(**arguments))
        # Abandoned where nobody waits for it any more: a thread cannot be stopped, and it keeps its place in the limit.
        work = partial(self._run_in_thread, arguments)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)

    def _run_in_thread(self, arguments: dict[str, Any]) -> bytes:
        return self._result(self._tool.function(**arguments))

    def _result(self, value: Any) -> bytes:
        try:
            text = msgspec.json.encode(value)
        except Exception as error:  # a TypeError most often; what a value's own methods raise
            return _error(f"{self.identity} returned what JSON cannot say: {_in_words(error)}")
        if len(text) > MAX_RESULT_BYTES:
            raise LimitExceeded(f"the result of {self.identity} has {len(text)} bytes; {MAX_RESULT_BYTES} may be")
        # In `structuredContent` it is one level further down.
        if too_deep(text, MAX_RESULT_DEPTH - 1):
            raise LimitExceeded(f"the result of {self.identity} is nested deeper than {MAX_RESULT_DEPTH - 1} levels")
        if isinstance(value, str):
            return b'{"content":[{"type":"text","text":%b}]}' % text
        return call_tool_result(text.decode(), structured=True).encode()

    def _failed(self, error: BaseException) -> bytes:
        cancelled, failure = _parted(error)
        if failure is not None:
            log.warning("a tool of a local pack failed", tool=self.identity, exc_info=failure)
        if cancelled is not None:
            raise cancelled
        return _error(_in_words(error))


class ProxiedTool(PackTool):
    """A tool of a proxied MCP server."""

    def __init__(self, server: str, tool: UpstreamTool, upstreams: Upstreams) -> None:
        super().__init__(server, tool.name, {key: value for key, value in tool.entry.items() if key != "name"})
        self._upstreams = upstreams

    # When it is asked for: a server may list a thousand, and take a tenth of a second with that.
    @cached_property
    def shown(self) -> Entry:
        return shown(self.identity, self.entry)

    async def call(self, arguments: Raw, progress: Progress) -> bytes:
        """Has the server run the tool; its result comes back whole."""
        return await self._upstreams.call(self.pack, self.name, bytes(arguments), progress)


def shown(identity: str, tool: dict[str, Any]) -> Entry:
    """Returns what `ot` shows of `pack.tool` that somebody else offers: `tool` is its MCP Tool."""
    schema = tool.get("inputSchema")
    return Entry(
        name=identity,
        signature=signatures.from_schema(identity, schema),
        description=tool.get("description") or "",
        source=f"{PROXY}:{identity.partition('.')[0]}",
        args=signatures.args_from_schema(schema),
    )


def _parted(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Returns what of an error is a cancellation, and the rest."""
    return error.split(trio.Cancelled) if isinstance(error, BaseExceptionGroup) else (None, error)


def _in_words(error: BaseException) -> str:
    """Returns what was raised; of a group, as a nursery raises it, all that is in it."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_in_words, error.exceptions))
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its `__str__` is the pack's too
        return type(error).__name__


def _error(text: str) -> bytes:
    # A file's name, for one, may hold what has no UTF-8.
    return error_result(writable(text[:MAX_ERROR_CHARACTERS])).encode()
