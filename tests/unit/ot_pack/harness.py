"""The state that tool-ot-spec speaks of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ot_pack
from ot_pack.signatures import args_from_schema, from_schema
from ot_pack.snippets import Param, Snippet
from ot_pack.state import Entry, State, bound

WEB_SEARCH: Final = Entry(
    name="brave.web_search",
    signature="brave.web_search(query, count=10)",
    description="Search the web",
    source="local",
    args=("query: What to look for", "count: (no description)"),
)
FOO: Final = Entry(
    name="demo.foo",
    signature="demo.foo(text)",
    description="Demo function",
    source="local",
    args=("text: (no description)",),
)
SEARCH_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "repo": {"type": "string", "description": "Where to look"},
        "query": {"type": "string", "description": "What to look for"},
    },
    "required": ["query"],
}
GITHUB_SEARCH: Final = Entry(
    name="github.search",
    signature=from_schema("github.search", SEARCH_SCHEMA),
    description="Search code",
    source="proxy:github",
    args=args_from_schema(SEARCH_SCHEMA),
)
ALIASES: Final = {"ws": "brave.web_search", "alias_f": "demo.foo"}
FOON: Final = Snippet(name="foon", description="Get foo() for n items", body="demo.foo()")
BARN: Final = Snippet(name="barn", description="Get bar() for n items", body="demo.bar()")
RESEARCH: Final = Snippet(
    name="brv_research",
    description="Search web and extract structured findings",
    params={
        "topic": Param(description="Topic to research", example="Python"),
        "count": Param(default=5, description="Number of sources"),
    },
    body=(
        'results = brave.search(query="{{ topic }}", count={{ count }})\n'
        'llm.transform(input=results, prompt="Extract key findings")\n'
    ),
)


def state(**parts: Any) -> State:
    """A state with the spec's version and working directory, and otherwise with these parts alone."""
    return State(**{"version": "1.0.0", "cwd": "/current/working/directory"} | parts)


def shown(function: str, state: State, **arguments: object) -> str:
    """What a function of the pack returns over `state`."""
    with bound(state):
        text = getattr(ot_pack, function)(**arguments)
    assert isinstance(text, str)
    return text
