"""The methods of MCP that the client answers (WIRE section 1, "Towards the agent").

Each era has its own table of them. Where revisions differ otherwise, the table of `oubliette.protocol.revisions` says
so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from oubliette.protocol.results import call_tool_result, error_result
from oubliette.protocol.revisions import NEWEST, Revision, negotiate
from oubliette_client import children, era, source
from oubliette_client.catalog import Catalog
from oubliette_client.children import Children
from oubliette_client.era import Request
from oubliette_client.key import ApiKey
from oubliette_client.link import NOT_CONNECTED, Answer, Link, Report
from oubliette_client.messages import INVALID_PARAMS, NULL, RequestError
from oubliette_client.progress import reporting
from oubliette_client.streams import Outbox
from oubliette_client.subscriptions import Subscriptions
from oubliette_client.tools import Tool

CAPABILITIES: Final = '{"tools":{"listChanged":true}}'
# MCP 2026-07-28, "Caching". What is discovered changes with the program alone, the list with every declaration.
_DISCOVERY_HOLDS: Final = '"ttlMs":3600000,"cacheScope":"public"'
_LIST_HOLDS: Final = '"ttlMs":0,"cacheScope":"private"'

Waiting = Callable[[Request], Awaitable[str]]
"""Answers a request: returns the text of the result, or raises `RequestError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The methods of one era."""

    immediate: dict[str, Callable[[Request], str]]
    """those that answer at once"""
    waiting: dict[str, Waiting]
    """those that may wait"""


class Methods:
    """The client's answers to its one agent."""

    def __init__(
        self, catalog: Catalog, link: Link, outbox: Outbox, subscriptions: Subscriptions, key: ApiKey | None
    ) -> None:
        self._catalog = catalog
        self._link = link
        self._outbox = outbox
        self._key = key
        self._children = Children(link, outbox)
        self._listing = trio.Lock()
        # The revision of the requests that name none. Until `initialize` says otherwise; the official servers answer
        # agents that never send it, too.
        self.agreed = NEWEST
        tools: dict[str, Waiting] = {"tools/list": self._list, "tools/call": self._call}
        self._with_handshake = Handlers(immediate={"initialize": self._initialize, "ping": self._ping}, waiting=tools)
        self._stateless = Handlers(
            immediate={"server/discover": self._discover},
            waiting=tools | {"subscriptions/listen": subscriptions.listen},
        )

    def of(self, revision: Revision) -> Handlers:
        """Returns the methods of a revision's era."""
        return self._stateless if revision.stateless else self._with_handshake

    def _initialize(self, request: Request) -> str:
        self.agreed = negotiate(source.string(request.params.get("protocolVersion")), "stdio")
        version = source.quote(self.agreed.name)
        return f'{{"protocolVersion":{version},"capabilities":{CAPABILITIES},"serverInfo":{era.SERVER_INFO}}}'

    def _ping(self, request: Request) -> str:
        return "{}"

    def _discover(self, request: Request) -> str:
        versions = ",".join(map(source.quote, era.STATELESS))
        return era.result(f'"supportedVersions":[{versions}],"capabilities":{CAPABILITIES},{_DISCOVERY_HOLDS}')

    async def _list(self, request: Request) -> str:
        await self._catalog.ready()
        # A list may have megabytes: one at a time, so that an agent which asks and does not read costs one of them.
        async with self._listing:
            await self._outbox.room()
            tools = f'"tools":{self._catalog.listing(request.revision)}'
            return era.result(f"{_LIST_HOLDS},{tools}") if request.revision.stateless else f"{{{tools}}}"

    async def _call(self, request: Request) -> str:
        outcome = await self._outcome(request)
        return era.completed(outcome) if request.revision.stateless else outcome

    async def _outcome(self, request: Request) -> str:
        name = source.string(request.params.get("name"))
        if name is None:
            raise RequestError(INVALID_PARAMS, "name must be a string")
        await self._catalog.ready()
        tool = self._catalog.tool(name)
        if tool is not None:
            async with reporting(request.params, self._outbox) as report:
                return await self._carry_out(tool, request, report)
        if not self._link.connected:
            return error_result(NOT_CONNECTED)
        raise RequestError(INVALID_PARAMS, f"there is no tool {source.excerpt(name)}")

    async def _carry_out(self, tool: Tool, request: Request, report: Report) -> str:
        arguments = request.params.get("arguments", NULL)
        arguments = arguments if arguments != NULL else "{}"
        if tool.method == children.METHOD:
            return await self._children.call(arguments, report, structured=request.revision.structured_content)
        asked = tool.params(arguments)
        if tool.needs_key and self._key is not None:
            asked = self._key.sign(asked)
        return _outcome_of(await self._link.request(tool.method, asked, report), request.revision)


def _outcome_of(answer: Answer, revision: Revision) -> str:
    # An error sets `isError`: without it, clients demand `structuredContent` where an `outputSchema` was declared.
    if answer.result is None:
        return error_result(answer.error)
    return call_tool_result(answer.result, structured=revision.structured_content)
