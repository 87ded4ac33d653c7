"""One declaration a tool: its schemas, its MCP entry, its permission check and the decoding of its arguments.

@tool("token", access="admin", target="global")
async def revoke(call: Call, arguments: TokenId) -> Revoked:
    '''Makes a token worthless.'''
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from ot_pack import signatures
from ot_pack.snippets import MISSING
from ot_pack.state import Entry
from oubliette.errors import InvalidParams
from oubliette.protocol.mcp_results import ToolContent
from oubliette.protocol.names import mcp_name
from oubliette.scopes import Access, Target
from oubliette.toolbox.call import Call

ArgumentsT = TypeVar("ArgumentsT", bound=Struct)
ResultT = TypeVar("ResultT", bound=Struct)
Handler = Callable[[Call, ArgumentsT], Awaitable[ResultT]]

# msgspec's sentences: "… field `x`", "… - at `$.x[3].y`", "… at `key` in `$.x`".
_NAMED_FIELD: Final = re.compile(r"field `([^`]+)`")
_PATH: Final = re.compile(r"`\$\.?([^`]*)`")


class Tool(Generic[ArgumentsT, ResultT]):
    """A tool of the daemon. `name` is its MCP name, `holds` whether its answer may be long in coming or is preceded by
    reports, `is_immediate` whether it is there at once. One that is not `is_structured` makes its `CallToolResult`
    itself.
    """

    def __init__(
        self,
        handler: Handler[ArgumentsT, ResultT],
        identity: str,
        access: Access,
        target: Target,
        *,
        holds: bool,
        is_immediate: bool,
        destructive: bool,
    ) -> None:
        hints = typing.get_type_hints(handler, include_extras=True)
        self.identity = identity
        self.pack, _, name = identity.partition(".")
        self.name = mcp_name(self.pack, name)
        self.access = access
        self.target = target
        self.holds = holds
        self.is_immediate = is_immediate
        self.run = handler
        self.description = inspect.cleandoc(handler.__doc__ or "")
        self.arguments: type[ArgumentsT] = hints["arguments"]
        self.is_structured = hints["return"] is not ToolContent
        self.entry = self._entry(hints["return"], destructive)
        self.shown = _shown(identity, self.description, self.arguments, self.entry["inputSchema"])
        self._decoder: msgspec.json.Decoder[ArgumentsT] = msgspec.json.Decoder(self.arguments)

    def decode(self, arguments: msgspec.Raw | bytes) -> ArgumentsT:
        """Returns the arguments, checked. Raises `InvalidParams` that names the argument at fault."""
        try:
            return self._decoder.decode(arguments)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"{self.name}: {error}", field=_field_of(str(error))) from None
        except msgspec.DecodeError as error:
            raise InvalidParams(f"{self.name}: {error}") from None

    def _entry(self, result: type[ResultT], destructive: bool) -> dict[str, Any]:
        read_only = self.access == "read"
        output = {"outputSchema": _schema(result)} if self.is_structured else {}
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": _schema(self.arguments),
            **output,
            "annotations": {"readOnlyHint": read_only, "destructiveHint": destructive, "openWorldHint": False},
        }


AnyTool = Tool[Any, Any]


def tool(
    identity: str,
    *,
    access: Access,
    target: Target,
    holds: bool = False,
    is_immediate: bool = False,
    destructive: bool = False,
) -> Callable[[Handler[ArgumentsT, ResultT]], Tool[ArgumentsT, ResultT]]:
    """Declares the decorated async function as the tool `identity`, `pack.tool`.

    `access` and `target` are WIRE section 6's columns. `holds`: it may wait for a turn or for events, or report.
    `is_immediate`: it waits for nothing, but for the records of a session that has ended. `destructive` is the MCP
    hint.
    """

    def declare(handler: Handler[ArgumentsT, ResultT]) -> Tool[ArgumentsT, ResultT]:
        return Tool(handler, identity, access, target, holds=holds, is_immediate=is_immediate, destructive=destructive)

    return declare


def _schema(struct: type[Struct]) -> dict[str, Any]:
    """The JSON Schema of a Struct, with `type: object` at its top as MCP demands."""
    (_,), components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(struct.__name__)
    schema.pop("title", None)
    return {**schema, "$defs": components} if components else schema


def _shown(identity: str, description: str, arguments: type[Struct], schema: dict[str, Any]) -> Entry:
    """The tool as `ot` shows it: "Local: names and defaults, no annotations"."""
    parameters = [(field.name, _default(field)) for field in msgspec.structs.fields(arguments)]
    return Entry(
        name=identity,
        signature=signatures.from_parameters(identity, parameters),
        description=description,
        source="local",
        args=signatures.args_from_schema(schema),
    )


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.required:
        return MISSING
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _field_of(sentence: str) -> str | None:
    named, path = _NAMED_FIELD.search(sentence), _PATH.search(sentence)
    parts = [path[1] if path else "", named[1] if named else ""]
    return ".".join(part for part in parts if part) or None
