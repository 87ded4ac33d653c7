"""WIRE section 1, "Towards the agent": revisions, the methods that answer at once, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import oubliette
from tests.unit.client.harness import client, ready_client


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_a_spoken_revision_is_agreed_to(revision: str) -> None:
    async with client() as (agent, _):
        assert await agent.initialize(revision) == {
            "protocolVersion": revision,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "oubliette-client", "version": oubliette.__version__},
        }


@pytest.mark.parametrize("asked", ["1999-01-01", "", 7, None])
async def test_any_other_revision_is_answered_with_the_newest(asked: Any) -> None:
    async with client() as (agent, _):
        await agent.ask(1, "initialize", {"protocolVersion": asked})
        assert (await agent.receive())["result"]["protocolVersion"] == "2025-11-25"


async def test_ping_is_answered_before_initialize() -> None:
    async with client() as (agent, _):
        await agent.ask("p", "ping")
        assert await agent.receive() == {"jsonrpc": "2.0", "id": "p", "result": {}}


async def test_an_agent_that_never_initializes_is_served() -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.configure("send")
        assert list(await agent.tools()) == ["ant_send"]


@pytest.mark.parametrize("method", ["resources/list", "prompts/list", "notifications/initialized"])
async def test_a_request_for_another_method_is_refused(method: str) -> None:
    async with client() as (agent, _):
        await agent.ask(1, method)
        error = (await agent.receive())["error"]
        assert (error["code"], error["data"]) == (-32601, {"kind": "method_not_found"})
        assert method in error["message"]


async def test_notifications_and_responses_are_not_answered() -> None:
    async with client() as (agent, _):
        await agent.send(
            {"method": "notifications/roots/list_changed"},
            {"method": "tools/call", "params": {"name": "x"}},
            {"id": 4, "result": {}},
            {"id": 5, "error": {"code": 1, "message": "no"}},
        )
        await agent.ask(1, "ping")
        assert (await agent.receive())["id"] == 1


DECLARED = {
    "name": "send",
    "title": "Send",
    "description": "Sends",
    "inputSchema": {"type": "object", "required": ["to"]},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "timeout_seconds": 60,
}
ALWAYS = {"name", "description", "inputSchema"}


@pytest.mark.parametrize(
    ("revision", "shown"),
    [
        ("2024-11-05", ALWAYS),
        ("2025-03-26", ALWAYS | {"annotations"}),
        ("2025-06-18", ALWAYS | {"annotations", "title", "outputSchema"}),
        ("2025-11-25", ALWAYS | {"annotations", "title", "outputSchema"}),
    ],
)
async def test_a_tool_is_shown_as_the_revision_knows_tools(revision: str, shown: set[str]) -> None:
    async with client() as (agent, daemon):
        link = await daemon.accept()
        await link.declare(DECLARED)
        await link.offer()
        await agent.initialize(revision)
        tool = (await agent.tools())["ant_send"]
        assert tool == {"name": "ant_send"} | {key: DECLARED[key] for key in shown - {"name"}}


@pytest.mark.parametrize(("revision", "structured"), [("2025-03-26", False), ("2025-06-18", True)])
async def test_structured_content_comes_with_the_revisions_that_know_it(revision: str, structured: bool) -> None:
    async with ready_client("send", revision=revision) as (agent, link, _):
        await agent.call(1, "ant_send")
        await link.answer(await link.receive(), {"sent": 1})
        assert ("structuredContent" in (await agent.receive())["result"]) is structured
