"""Each scenario of tool-ot-spec, under its title; what it shows is compared to the letter."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ot_pack import standalone
from ot_pack.state import LOCAL, PROXY, Entry
from ot_pack.topics import Topic
from tests.unit.ot_pack.harness import (
    ALIASES,
    BARN,
    FOO,
    FOON,
    GITHUB_SEARCH,
    RESEARCH,
    WEB_SEARCH,
    shown,
    state,
)

LOCAL_TOOLS: Final = (WEB_SEARCH, FOO)
ALL_TOOLS: Final = (*LOCAL_TOOLS, GITHUB_SEARCH)


def names(text: str) -> list[str]:
    return [item["name"] for item in yaml.safe_load(text)]


# --- Requirement: List Tools -----------------------------------------------------------------------------------------


def test_list_all_tools() -> None:
    """List all tools"""
    listed = yaml.safe_load(shown("tools", state(entries=ALL_TOOLS)))
    assert [list(item) for item in listed] == [["name", "signature", "description", "source"]] * 3
    assert [item["source"] for item in listed] == ["local", "local", "proxy:github"]


def test_get_specific_tool_by_name() -> None:
    """Get specific tool by name"""
    search = Entry(name="brave.search", signature="brave.search(query)", description="Search", source=LOCAL)
    brave = state(entries=(WEB_SEARCH, search))
    assert yaml.safe_load(shown("tools", brave, name="brave.search")) == {
        "name": "brave.search",
        "signature": "brave.search(query)",
        "description": "Search",
        "args": [],
        "source": "local",
    }
    assert shown("tools", state(entries=LOCAL_TOOLS), name="brave.search") == (
        "Error: tool 'brave.search' not found. Available: brave.web_search, demo.foo"
    )


def test_filter_by_pattern() -> None:
    """Filter by pattern"""
    assert names(shown("tools", state(entries=ALL_TOOLS), pattern="search")) == ["brave.web_search", "github.search"]
    assert names(shown("tools", state(entries=ALL_TOOLS), pattern="SEARCH")) == ["brave.web_search", "github.search"]


def test_filter_by_pack() -> None:
    """Filter by pack"""
    assert names(shown("tools", state(entries=ALL_TOOLS), pack="brave")) == ["brave.web_search"]


def test_compact_output() -> None:
    """Compact output"""
    compact = shown("tools", state(entries=ALL_TOOLS), compact=True)
    assert yaml.safe_load(compact) == [
        {"name": entry.name, "description": entry.description} for entry in (WEB_SEARCH, FOO, GITHUB_SEARCH)
    ]
    assert len(compact) < 0.6 * len(shown("tools", state(entries=ALL_TOOLS)))


def test_output_format() -> None:
    """Output format"""
    assert shown("tools", state(entries=LOCAL_TOOLS)) == (
        "- {name: brave.web_search, "
        'signature: "brave.web_search(query, count=10)", description: "Search the web", source: local}\n'
        '- {name: demo.foo, signature: "demo.foo(text)", description: "Demo function", source: local}'
    )


def test_proxy_tool_signature_from_schema() -> None:
    """Proxy tool signature from schema"""
    (listed,) = yaml.safe_load(shown("tools", state(entries=(GITHUB_SEARCH,))))
    assert listed["signature"] == "github.search(query: str, repo: str = '...')"


def test_proxy_tool_arguments_from_schema() -> None:
    """Proxy tool arguments from schema"""
    assert shown("tools", state(entries=(GITHUB_SEARCH,)), name="github.search") == (
        "name: github.search\n"
        "signature: \"github.search(query: str, repo: str = '...')\"\n"
        "description: Search code\n"
        'args: ["query: What to look for", "repo: Where to look"]\n'
        "source: proxy:github"
    )


# --- Requirement: Configuration Summary ------------------------------------------------------------------------------


def test_show_config() -> None:
    """Show config"""
    configured = state(
        aliases=ALIASES, snippets={"foon": FOON, "barn": BARN}, servers={"proxy_package_version": "connected"}
    )
    assert shown("config", configured) == (
        "aliases: {ws: brave.web_search, alias_f: demo.foo}\n"
        'snippets: {foon: {description: "Get foo() for n items"}, barn: {description: "Get bar() for n items"}}\n'
        "servers: [proxy_package_version]"
    )


def test_empty_config() -> None:
    """Empty config"""
    assert shown("config", state()) == "{aliases: {}, snippets: {}, servers: []}"


# --- Requirement: Health Check ---------------------------------------------------------------------------------------


def fifteen_tools() -> tuple[Entry, ...]:
    return tuple(
        Entry(name=f"demo.f{number}", signature=f"demo.f{number}()", description="", source=LOCAL)
        for number in range(15)
    )


def test_show_health() -> None:
    """Show health"""
    running = state(entries=(*fifteen_tools(), GITHUB_SEARCH), servers={"proxy_package_version": "connected"})
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    text = shown("health", running)
    # The spec's "3.11.x" stands for the whole version, as sys.version begins with it.
    assert re.sub(rf'(python: "){re.escape(python)}[^"\s]*"', r'\g<1>3.11.x"', text) == (
        'version: "1.0.0"\n'
        'python: "3.11.x"\n'
        "cwd: /current/working/directory\n"
        "registry: {status: ok, tool_count: 15}\n"
        "proxy: {status: ok, server_count: 1, servers: {proxy_package_version: connected}}"
    )


def test_disconnected_server() -> None:
    """Disconnected server"""
    running = state(servers={"proxy_package_version": "connected", "github": "disconnected"})
    assert shown("health", running).splitlines()[-1] == (
        "proxy: {status: degraded, server_count: 2, servers: {proxy_package_version: connected, github: disconnected}}"
    )


# --- Requirement: Notify Message -------------------------------------------------------------------------------------


def test_send_notification(tmp_path: Path) -> None:
    """Send notification"""
    told = state(topics=(Topic(pattern="notes*", file="notes.yaml"),), topics_folder=tmp_path)
    assert shown("notify", told, topic="notes", message="Remember to review PR #123") == "OK: notes -> notes.yaml"
    assert shown("notify", told, topic="notes", message="And #124") == "OK: notes -> notes.yaml"
    documents = list(yaml.safe_load_all((tmp_path / "notes.yaml").read_text()))
    assert [list(document) for document in documents] == [["ts", "topic", "message"]] * 2
    assert [document["message"] for document in documents] == ["Remember to review PR #123", "And #124"]


# --- Requirement: Reload Configuration -------------------------------------------------------------------------------


def test_reload_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reload config"""
    import ot_pack

    file = tmp_path / "oubliette.yaml"
    file.write_text("snippets: {one: {body: a}}\n")
    monkeypatch.setattr(standalone, "_reach", type(standalone._reach)())
    standalone.use(file)
    assert names(ot_pack.snippets()) == ["one"]
    file.write_text("snippets: {two: {body: b}}\n")
    assert names(ot_pack.snippets()) == ["one"], "read once"
    assert ot_pack.reload() == "OK: Configuration reloaded"
    assert names(ot_pack.snippets()) == ["two"]


# --- Requirement: YAML Flow Style Output -----------------------------------------------------------------------------


def everything() -> dict[str, str]:
    """What each function shows of a state in which there is something of each kind."""
    full = state(
        entries=ALL_TOOLS,
        aliases=ALIASES,
        snippets={"foon": FOON},
        servers={"github": "connected"},
        packs={"github": PROXY, "slack": PROXY},
        problems={"demo.py": "line 3: no"},
    )
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "tools": ("tools", {}),
        "a tool": ("tools", {"name": "github.search"}),
        "packs": ("packs", {}),
        "a pack": ("packs", {"name": "github"}),
        "aliases": ("aliases", {}),
        "snippets": ("snippets", {}),
        "config": ("config", {}),
        "health": ("health", {}),
    }
    return {title: shown(function, full, **arguments) for title, (function, arguments) in calls.items()}


def test_flow_style_formatting() -> None:
    """Flow style formatting"""
    texts = everything()
    assert texts["aliases"] == "{ws: brave.web_search, alias_f: demo.foo}"
    for title in ("tools", "packs", "snippets"):
        lines = texts[title].splitlines()
        assert len(lines) == len(yaml.safe_load(texts[title]))
        assert all(line.startswith("- {") and line.endswith("}") for line in lines)


def flow_levels(text: str) -> int:
    """How deep the flow collections of a YAML text nest."""
    deepest, level = 0, 0
    for token in yaml.scan(text):
        level += isinstance(token, yaml.FlowMappingStartToken | yaml.FlowSequenceStartToken)
        level -= isinstance(token, yaml.FlowMappingEndToken | yaml.FlowSequenceEndToken)
        deepest = max(deepest, level)
    return deepest


def test_readability() -> None:
    """Readability"""
    levels = {title: flow_levels(text) for title, text in everything().items()}
    assert all(1 <= level <= 2 for level in levels.values()), levels
    assert all(json.dumps(yaml.safe_load(text)) for text in everything().values())


# --- Requirement: Logging --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        *((name, {}) for name in ("tools", "packs", "aliases", "snippets", "config", "health", "reload")),
        ("notify", {"topic": "notes", "message": "hello"}),
    ],
)
def test_span_naming(function: str, arguments: dict[str, str]) -> None:
    """Span naming"""
    spans = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        spans.append(f"{name} begins")
        yield
        spans.append(f"{name} ends")

    shown(function, state(span=span, reload=lambda: None), **arguments)
    assert spans == [f"ot.{function} begins", f"ot.{function} ends"]


# --- Requirement: Pack Discovery -------------------------------------------------------------------------------------


def test_list_all_packs() -> None:
    """List all packs"""
    assert shown("packs", state(entries=ALL_TOOLS)) == (
        "- {name: brave, source: local, tool_count: 1}\n"
        "- {name: demo, source: local, tool_count: 1}\n"
        "- {name: github, source: proxy, tool_count: 1}"
    )


def test_get_specific_pack_by_name() -> None:
    """Get specific pack by name"""
    configured = state(entries=ALL_TOOLS, instructions={"brave": "Search first.\nAsk then.\n"})
    assert shown("packs", configured, name="brave") == (
        "name: brave\n"
        "source: local\n"
        "instructions: |\n"
        "  Search first.\n"
        "  Ask then.\n"
        "tools:\n"
        '  - {name: brave.web_search, description: "Search the web"}'
    )
    assert shown("packs", configured, name="brav").startswith("Error: pack 'brav' not found. Available: brave, ")


def test_filter_packs_by_pattern() -> None:
    """Filter by pattern"""
    assert names(shown("packs", state(entries=ALL_TOOLS), pattern="brav")) == ["brave"]
    assert names(shown("packs", state(entries=ALL_TOOLS), pattern="BRAV")) == ["brave"]


def test_pack_not_found() -> None:
    """Pack not found"""
    text = shown("packs", state(entries=LOCAL_TOOLS), name="nonexistent")
    assert text == "Error: pack 'nonexistent' not found. Available: demo, brave"


def test_pack_with_configured_instructions() -> None:
    """Pack with configured instructions"""
    excel = Entry(name="excel.read", signature="excel.read(path)", description="Read a sheet", source=LOCAL)
    configured = state(entries=(excel,), instructions={"excel": "Sheets count from 1."})
    text = shown("packs", configured, name="excel")
    assert yaml.safe_load(text)["instructions"] == "Sheets count from 1."


def test_proxy_pack() -> None:
    """Proxy pack"""
    pack = yaml.safe_load(shown("packs", state(entries=ALL_TOOLS), name="github"))
    assert pack["source"] == "proxy"
    assert pack["tools"] == [{"name": "github.search", "description": "Search code"}]


# --- Requirement: Alias Introspection --------------------------------------------------------------------------------


def test_list_all_aliases() -> None:
    """List all aliases"""
    assert shown("aliases", state(aliases=ALIASES)) == "{ws: brave.web_search, alias_f: demo.foo}"


def test_get_specific_alias_by_name() -> None:
    """Get specific alias by name"""
    assert shown("aliases", state(aliases=ALIASES), name="ws") == "ws -> brave.web_search"


def test_filter_aliases_by_pattern() -> None:
    """Filter by pattern"""
    assert shown("aliases", state(aliases=ALIASES), pattern="search") == "{ws: brave.web_search}"
    assert shown("aliases", state(aliases=ALIASES), pattern="ALIAS") == "{alias_f: demo.foo}"


def test_alias_not_found() -> None:
    """Alias not found"""
    text = shown("aliases", state(aliases=ALIASES), name="xyz")
    assert text == "Error: alias 'xyz' not found. Available: ws, alias_f"


# --- Requirement: Snippet Introspection ------------------------------------------------------------------------------


def test_list_all_snippets() -> None:
    """List all snippets"""
    assert shown("snippets", state(snippets={"foon": FOON, "barn": BARN})) == (
        '- {name: foon, description: "Get foo() for n items"}\n- {name: barn, description: "Get bar() for n items"}'
    )


def test_get_specific_snippet_by_name() -> None:
    """Get specific snippet by name"""
    text = shown("snippets", state(snippets={"brv_research": RESEARCH}), name="brv_research")
    definition, _, example = text.partition("\n\n")
    assert yaml.safe_load(f"{definition}\n") == {
        "name": "brv_research",
        "description": RESEARCH.description,
        "params": {
            "topic": {"description": "Topic to research"},
            "count": {"default": 5, "description": "Number of sources"},
        },
        "body": RESEARCH.body,
    }
    assert 'brave.search(query="Python", count=5)' in example


def test_filter_snippets_by_pattern() -> None:
    """Filter snippets by pattern"""
    package = FOON._replace(name="pkg_version", description="Newest version")
    described = FOON._replace(name="newest", description="Newest PKG")
    configured = state(snippets={each.name: each for each in (package, described, FOON)})
    assert names(shown("snippets", configured, pattern="pkg")) == ["pkg_version", "newest"]


def test_snippet_not_found() -> None:
    """Snippet not found"""
    text = shown("snippets", state(snippets={"foon": FOON, "barn": BARN}), name="xyz")
    assert text == "Error: snippet 'xyz' not found. Available: foon, barn"


def test_snippet_output_format() -> None:
    """Snippet output format"""
    assert shown("snippets", state(snippets={"brv_research": RESEARCH}), name="brv_research") == (
        "name: brv_research\n"
        "description: Search web and extract structured findings\n"
        "params:\n"
        '  topic: {description: "Topic to research"}\n'
        '  count: {default: 5, description: "Number of sources"}\n'
        "body: |\n"
        '  results = brave.search(query="{{ topic }}", count={{ count }})\n'
        '  llm.transform(input=results, prompt="Extract key findings")\n'
        "\n"
        "# Example with defaults:\n"
        "# $brv_research topic=Python\n"
        "# Expands to:\n"
        'results = brave.search(query="Python", count=5)\n'
        'llm.transform(input=results, prompt="Extract key findings")'
    )
