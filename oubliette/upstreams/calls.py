"""One call of a proxied server's tool, from the arguments as text to the result as text."""

from __future__ import annotations

import math
from typing import Final

import trio

from oubliette.errors import InvalidParams, OublietteError, ServerDisconnected, ServerError, ServerTimeout
from oubliette.log import get as get_logger
from oubliette.protocol.jsonrpc import compact
from oubliette.protocol.members import members
from oubliette.protocol.nesting import MAX_DEPTH, too_deep
from oubliette.upstreams.connection import Connection, Fate, LostError, ProgressListener, RemoteError
from oubliette.upstreams.text import clean_line

# WIRE section 1 bounds what an agent's client takes: a longer result would only break its link. It is the default of
# `relay.max_message_bytes`.
MAX_RESULT_BYTES: Final = 4 * 1024 * 1024
# A message may nest 128 deep, and its envelope is two levels of that.
MAX_RESULT_DEPTH: Final = MAX_DEPTH - 2
# Of a server's sentence on how far it is.
MAX_PROGRESS_MESSAGE: Final = 1024
RAN: Final = "the tool may already have run"
NOT_RUN: Final = "the tool was not called, it is safe to retry"

log = get_logger(__name__)


class Call:
    """A call to make: `server` and `tool` are for the messages, `timeout` is in seconds, `max_bytes` the result's."""

    def __init__(self, server: str, tool: str, *, timeout: float, max_bytes: int) -> None:
        self._server = server
        self._tool = tool
        self._timeout = timeout
        self._max_bytes = max_bytes

    async def run(self, connection: Connection, fate: Fate, arguments: bytes, on_progress: ProgressListener) -> bytes:
        """Returns the `CallToolResult` as JSON text, spelled as the server spelled it.

        Raises ServerTimeout, ServerDisconnected where the connection ends meanwhile, and ServerError for the server's
        own error and for a result that cannot be passed on.
        """
        with trio.move_on_after(self._timeout):
            try:
                result = await connection.call(self._tool, arguments, _Rising(on_progress))
            except LostError:
                reason = f"{self._name} was lost: {fate.reason or 'the connection ended'}; {RAN}"
                raise ServerDisconnected(reason, retry_safe=False) from None
            except RemoteError as error:
                raise ServerError(f"{self._name} answered with an error: {error}", retry_safe=False) from None
            return self._checked(result)
        raise ServerTimeout(f"{self._name} timed out after {self._timeout:g} s; {RAN}", retry_safe=False)

    @property
    def _name(self) -> str:
        return f"tool {self._tool!r} of server {self._server!r}"

    def _checked(self, result: bytes) -> bytes:
        if len(result) > self._max_bytes:
            raise self._refusal(f"has {len(result)} bytes; at most {self._max_bytes} can be passed on")
        if too_deep(result, MAX_RESULT_DEPTH):
            raise self._refusal(f"is nested deeper than {MAX_RESULT_DEPTH} levels")
        return result

    def _refusal(self, problem: str) -> OublietteError:
        return ServerError(f"the result of {self._name} {problem}; {RAN}", retry_safe=False)


def read_arguments(arguments: bytes) -> bytes:
    """Returns arguments, JSON text, on one line. Raises InvalidParams for what is no JSON object.

    Whether they fit the tool's schema is the server's to say.
    """
    if too_deep(arguments, MAX_RESULT_DEPTH):
        raise _refused(f"the arguments are nested deeper than {MAX_RESULT_DEPTH} levels")
    try:
        members(arguments.decode())
    except ValueError as error:
        raise _refused(f"the arguments cannot be passed on: {error}") from None
    return compact(arguments)


def _refused(problem: str) -> InvalidParams:
    return InvalidParams(f"{problem}; {NOT_RUN}", field="arguments", retry_safe=True)


class _Rising:
    """Passes progress on that is progress. MCP: "The progress value MUST increase with each notification"."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener
        self._last = -math.inf

    def __call__(self, done: float, total: float | None, message: str | None) -> None:
        if not self._last < done < math.inf:
            return
        self._last = done
        of = total if total is not None and math.isfinite(total) else None
        self._listener(done, of, None if message is None else clean_line(message, MAX_PROGRESS_MESSAGE))
