"""The methods of MCP that the client answers (WIRE section 1, "Towards the agent").

One that answers at once stands in `immediate`, one that may wait in `waiting`. Where revisions differ, the table of
`oubliette.protocol.revisions` says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from oubliette import __version__
from oubliette.protocol.results import call_tool_result, error_result
from oubliette.protocol.revisions import NEWEST, negotiate
from oubliette_client import source
from oubliette_client.catalog import Catalog
from oubliette_client.link import NOT_CONNECTED, Answer, Link
from oubliette_client.messages import INVALID_PARAMS, NULL, RequestError
from oubliette_client.progress import Progress, token_of
from oubliette_client.streams import Outbox
from oubliette_client.tools import Tool

Params = dict[str, str]
"""The members of a request's params, source text."""

SERVER_INFO: Final = f'{{"name":"oubliette-client","version":"{__version__}"}}'
CAPABILITIES: Final = '{"tools":{"listChanged":true}}'


class Methods:
    """The client's answers to its one agent. A handler takes params and returns the text of the result."""

    def __init__(self, catalog: Catalog, link: Link, outbox: Outbox) -> None:
        self._catalog = catalog
        self._link = link
        self._outbox = outbox
        self._listing = trio.Lock()
        # Until `initialize` says otherwise; the official servers answer agents that never send it, too.
        self.revision = NEWEST
        self.immediate: dict[str, Callable[[Params], str]] = {"initialize": self._initialize, "ping": self._ping}
        self.waiting: dict[str, Callable[[Params], Awaitable[str]]] = {
            "tools/list": self._list,
            "tools/call": self._call,
        }

    def _initialize(self, params: Params) -> str:
        self.revision = negotiate(source.string(params.get("protocolVersion")), "stdio")
        version = source.quote(self.revision.name)
        return f'{{"protocolVersion":{version},"capabilities":{CAPABILITIES},"serverInfo":{SERVER_INFO}}}'

    def _ping(self, params: Params) -> str:
        return "{}"

    async def _list(self, params: Params) -> str:
        await self._catalog.ready()
        # A list may have megabytes: one at a time, so that an agent which asks and does not read costs one of them.
        async with self._listing:
            await self._outbox.room()
            return self._catalog.listing(self.revision)

    async def _call(self, params: Params) -> str:
        name = source.string(params.get("name"))
        if name is None:
            raise RequestError(INVALID_PARAMS, "name must be a string")
        await self._catalog.ready()
        tool = self._catalog.tool(name)
        if tool is not None:
            return self._outcome(await self._ask(tool, params))
        if not self._link.connected:
            return error_result(NOT_CONNECTED)
        raise RequestError(INVALID_PARAMS, f"there is no tool {source.excerpt(name)}")

    async def _ask(self, tool: Tool, params: Params) -> Answer:
        arguments = params.get("arguments", NULL)
        asked = tool.params(arguments if arguments != NULL else "{}")
        token = token_of(params)
        if token is None:
            return await self._link.request(tool.method, asked, lambda report: None)
        progress = Progress(token, self._outbox)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progress.heartbeat)
            answer = await self._link.request(tool.method, asked, progress.reported)
            nursery.cancel_scope.cancel()
        return answer

    def _outcome(self, answer: Answer) -> str:
        # An error sets `isError`: without it, clients demand `structuredContent` where an `outputSchema` was declared.
        if answer.result is None:
            return error_result(answer.error)
        return call_tool_result(answer.result, structured=self.revision.structured_content)
