"""What the conformance suite expects to find on a server: tools, prompts and resources by the names that it asks for.

Each does what the description of its scenario demands, by the means that the daemon's own tools have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import trio
from msgspec import Struct

from oubliette.errors import CallerToolError
from oubliette.mcp import prompts
from oubliette.mcp.prompts import Prompt
from oubliette.mcp.resources import RESOURCES, TEMPLATES, Resource, Template
from oubliette.protocol.mcp_results import ToolContent
from oubliette.toolbox import box
from oubliette.toolbox.call import Call
from oubliette.toolbox.declare import AnyTool, tool

Content = dict[str, Any]
EntryT = TypeVar("EntryT")

# One red pixel, and a sound of no length.
PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
WAV: Final = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
# "2. … (after ~50ms delay)": what a report is apart from the one before it, in seconds.
BETWEEN_REPORTS: Final = 0.05


class Nothing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No arguments."""


def text(said: str) -> Content:
    return {"type": "text", "text": said}


def image() -> Content:
    return {"type": "image", "data": PNG, "mimeType": "image/png"}


def embedded(uri: str, mime_type: str, said: str) -> Content:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": said}}


# Tools


@tool("test.simple_text", access="read", target="global")
async def simple_text(call: Call, arguments: Nothing) -> ToolContent:
    """Returns text."""
    return ToolContent(content=[text("This is a simple text response for testing.")])


@tool("test.image_content", access="read", target="global")
async def image_content(call: Call, arguments: Nothing) -> ToolContent:
    """Returns an image."""
    return ToolContent(content=[image()])


@tool("test.audio_content", access="read", target="global")
async def audio_content(call: Call, arguments: Nothing) -> ToolContent:
    """Returns a sound."""
    return ToolContent(content=[{"type": "audio", "data": WAV, "mimeType": "audio/wav"}])


@tool("test.embedded_resource", access="read", target="global")
async def embedded_resource(call: Call, arguments: Nothing) -> ToolContent:
    """Returns a resource."""
    said = "This is an embedded resource content."
    return ToolContent(content=[embedded("test://embedded-resource", "text/plain", said)])


@tool("test.multiple_content_types", access="read", target="global")
async def multiple_content_types(call: Call, arguments: Nothing) -> ToolContent:
    """Returns text, an image and a resource."""
    resource = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return ToolContent(content=[text("Multiple content types test:"), image(), resource])


@tool("test.error_handling", access="read", target="global")
async def error_handling(call: Call, arguments: Nothing) -> ToolContent:
    """Fails."""
    raise CallerToolError("This tool intentionally returns an error for testing")


async def _log_thrice(call: Call) -> ToolContent:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.reports.log("info", said)
        await trio.sleep(BETWEEN_REPORTS)
    return ToolContent(content=[text("Logged.")])


@tool("test.tool_with_logging", access="read", target="global", holds=True)
async def tool_with_logging(call: Call, arguments: Nothing) -> ToolContent:
    """Logs while it runs."""
    return await _log_thrice(call)


@tool("test.logging_tool", access="read", target="global", holds=True)
async def logging_tool(call: Call, arguments: Nothing) -> ToolContent:
    """Logs while it runs; the suite does not ask for it, and expects to see nothing."""
    return await _log_thrice(call)


@tool("test.tool_with_progress", access="read", target="global", holds=True)
async def tool_with_progress(call: Call, arguments: Nothing) -> ToolContent:
    """Reports its progress while it runs."""
    for done in (0, 50, 100):
        await call.reports.progress(done, 100)
        await trio.sleep(BETWEEN_REPORTS)
    return ToolContent(content=[text("Done.")])


@tool("test.missing_capability", access="read", target="global")
async def missing_capability(call: Call, arguments: Nothing) -> ToolContent:
    """Needs a client that samples."""
    call.need("sampling")
    return ToolContent(content=[text("The client samples.")])


@tool("test.streaming_elicitation", access="read", target="global", holds=True)
async def streaming_elicitation(call: Call, arguments: Nothing) -> ToolContent:
    """Answers on a stream, on which the server must ask nothing."""
    await call.reports.progress(1, 1)
    return ToolContent(content=[text("The server asks nothing.")])


@tool("test.trigger_tool_change", access="read", target="global")
async def trigger_tool_change(call: Call, arguments: Nothing) -> ToolContent:
    """Adds a tool, or takes it away again."""
    _toggle(box.TOOLS, coming_and_going.name, coming_and_going)
    call.services.changes.announce("tools")
    return ToolContent(content=[text("The tools have changed.")])


@tool("test.trigger_prompt_change", access="read", target="global")
async def trigger_prompt_change(call: Call, arguments: Nothing) -> ToolContent:
    """Adds a prompt, or takes it away again."""
    prompt = _prompt("test_coming_and_going", "Is not always there", lambda given: [text("Here.")])
    _toggle(_PROMPTS, prompt.entry["name"], prompt)
    call.services.changes.announce("prompts")
    return ToolContent(content=[text("The prompts have changed.")])


@tool("test.coming_and_going", access="read", target="global")
async def coming_and_going(call: Call, arguments: Nothing) -> ToolContent:
    """Is not always there."""
    return ToolContent(content=[text("Here.")])


@tool("json.schema_2020_12_tool", access="read", target="global")
async def schema_2020_12(call: Call, arguments: Nothing) -> ToolContent:
    """Is there to be listed, with the schema that it has been given."""
    return ToolContent(content=[])


schema_2020_12.entry["inputSchema"] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

SUITE_TOOLS: Final[tuple[AnyTool, ...]] = (
    simple_text,
    image_content,
    audio_content,
    embedded_resource,
    multiple_content_types,
    error_handling,
    tool_with_logging,
    logging_tool,
    tool_with_progress,
    missing_capability,
    streaming_elicitation,
    trigger_tool_change,
    trigger_prompt_change,
    schema_2020_12,
)

# Prompts, beside those that the daemon has of its configuration

_PROMPTS: Final[dict[str, Prompt]] = {}


def _prompt(
    name: str, description: str, contents: Callable[[Mapping[str, str]], list[Content]], *arguments: str
) -> Prompt:
    """A prompt whose messages are all the user's; `arguments` are required."""
    declared = [{"name": argument, "description": "A string", "required": True} for argument in arguments]
    return Prompt(
        entry={"name": name, "description": description, "arguments": declared},
        messages=lambda given: [{"role": "user", "content": content} for content in contents(given)],
        complete=lambda argument, begun: [value for value in ("paris", "park", "party") if value.startswith(begun)],
    )


def _with_arguments(given: Mapping[str, str]) -> list[Content]:
    return [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]


def _with_embedded_resource(given: Mapping[str, str]) -> list[Content]:
    resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
    return [resource, text("Please process the embedded resource above.")]


SUITE_PROMPTS: Final[tuple[Prompt, ...]] = (
    _prompt("test_simple_prompt", "Text", lambda given: [text("This is a simple prompt for testing.")]),
    _prompt("test_prompt_with_arguments", "Text with two arguments in it", _with_arguments, "arg1", "arg2"),
    _prompt("test_prompt_with_embedded_resource", "A resource and text", _with_embedded_resource, "resourceUri"),
    _prompt(
        "test_prompt_with_image", "An image and text", lambda given: [image(), text("Please analyze the image above.")]
    ),
)

# Resources


def _resource(uri: str, mime_type: str, **content: str) -> Resource:
    return Resource(
        entry={"uri": uri, "name": uri.rpartition("/")[2], "description": "A fixture", "mimeType": mime_type},
        contents={"mimeType": mime_type, **content},
    )


async def _read_template(call: Call, id: str) -> dict[str, Any]:
    data = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
    return {"mimeType": "application/json", "text": json.dumps(data)}


async def _complete_template(call: Call, variable: str, begun: str) -> list[str]:
    return []


SUITE_RESOURCES: Final[tuple[Resource, ...]] = (
    _resource("test://static-text", "text/plain", text="This is the content of the static text resource."),
    _resource("test://static-binary", "image/png", blob=PNG),
    _resource("test://watched-resource", "text/plain", text="Watched resource content"),
)
SUITE_TEMPLATE: Final = Template(
    entry={
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "A fixture",
        "mimeType": "application/json",
    },
    pattern=re.compile(r"test://template/([^/]+)/data\Z"),
    read=_read_template,
    complete=_complete_template,
)


def register() -> None:
    """Puts the fixtures beside what the daemon has of its own."""
    box.TOOLS.update({declared.name: declared for declared in SUITE_TOOLS})
    _PROMPTS.update({prompt.entry["name"]: prompt for prompt in SUITE_PROMPTS})
    configured = prompts.offered
    prompts.offered = lambda services: {**configured(services), **_PROMPTS}
    RESOURCES.update({resource.entry["uri"]: resource for resource in SUITE_RESOURCES})
    TEMPLATES.append(SUITE_TEMPLATE)


def _toggle(registry: dict[str, EntryT], name: str, entry: EntryT) -> None:
    if registry.pop(name, None) is None:
        registry[name] = entry
