"""The functions of the `ot` pack. Each takes keywords only and returns text.

What the asker got wrong, such as a name that nothing has, is a text that begins with `Error:`; so is a configuration
that cannot be read. An argument of a wrong type raises `TypeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec

from ot_pack import views
from ot_pack.flow import writable
from ot_pack.state import bound, current

P = ParamSpec("P")

# The types of arguments, by how the annotations here are written.
_TYPES: Final = {"str": str, "str | None": str | None, "bool": bool}


def _in_span(function: Callable[P, str]) -> Callable[P, str]:
    """Runs a function in the span `ot.{function}` (tool-ot-spec, "Span naming") and over one state from beginning to
    end, with arguments of the types that it names; what it returns can be encoded.
    """
    span = f"ot.{function.__name__}"
    expected = {name: kind for name, kind in function.__annotations__.items() if name != "return"}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> str:
        for name, value in kwargs.items():
            if name in expected and not isinstance(value, _TYPES[expected[name]]):
                raise TypeError(f"{name} must be {expected[name]}, not {type(value).__name__}")
        try:
            with bound(current()) as state, state.span(span):
                return writable(function(*args, **kwargs))
        except _config_error() as error:
            return writable(f"Error: {error}")

    return call


def _config_error() -> type[Exception]:
    # Not at the top: it reads YAML, and nothing else here does.
    from ot_pack.document import ConfigError

    return ConfigError


@_in_span
def tools(
    *, name: str | None = None, pattern: str | None = None, pack: str | None = None, compact: bool = False
) -> str:
    """List the tools there are, one a line, or show one of them with its arguments.

    Args:
        name: Exact name of one tool, such as brave.web_search; the other filters do not count then
        pattern: Only tools whose name contains this, in whatever case
        pack: Only tools of this pack
        compact: Names and descriptions only
    """
    return views.tools(current(), name=name, pattern=pattern, pack=pack, compact=compact)


@_in_span
def packs(*, name: str | None = None, pattern: str | None = None) -> str:
    """List the packs there are, one a line, or show one of them with its instructions and tools.

    Args:
        name: Exact name of one pack
        pattern: Only packs whose name contains this, in whatever case
    """
    return views.packs(current(), name=name, pattern=pattern)


@_in_span
def aliases(*, name: str | None = None, pattern: str | None = None) -> str:
    """List the aliases of tools, or show what one of them stands for.

    Args:
        name: Exact name of one alias
        pattern: Only aliases whose name or target contains this, in whatever case
    """
    return views.aliases(current(), name=name, pattern=pattern)


@_in_span
def snippets(*, name: str | None = None, pattern: str | None = None) -> str:
    """List the snippets there are, one a line, or show the definition of one with an example.

    Args:
        name: Exact name of one snippet
        pattern: Only snippets whose name or description contains this, in whatever case
    """
    return views.snippets(current(), name=name, pattern=pattern)


@_in_span
def config() -> str:
    """Show the configured aliases, snippets and servers."""
    return views.config(current())


@_in_span
def health() -> str:
    """Show whether the tools of the local packs and the proxied servers are there."""
    return views.health(current())


@_in_span
def notify(*, topic: str, message: str) -> str:
    """Publish a message to the file of the first configured topic that matches.

    Args:
        topic: What the message is about, such as notes
        message: The text to append
    """
    # Not at the top, for a quick `import ot_pack`.
    from datetime import UTC, datetime

    from ot_pack.topics import publish

    state = current()
    ts = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return publish(state.topics, state.topics_folder, topic, message, ts)


@_in_span
def reload() -> str:
    """Read the configuration again; where it is bad, the old one stays."""
    current().reload()
    return "OK: Configuration reloaded"
