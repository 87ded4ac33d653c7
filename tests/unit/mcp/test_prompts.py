"""`prompts/list` and `prompts/get`: the snippets of the configuration (issue 5, 7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ot_pack.snippets import MAX_EXPANSION_CHARACTERS
from oubliette.mcp.resources import RESOURCES
from tests.helpers.domain import STRANGER
from tests.helpers.packs import ObservedPacks, configured, packs_of
from tests.unit.mcp.harness import Asker, open_asker, open_legacy_asker

CONFIG = """
snippets:
  greeting:
    description: A greeting
    params:
      who: {description: Who is greeted, example: Ada}
      times: {default: 2, description: How often}
      mark: {default: null}
    body: |
      {% for _ in range(times | int) %}hello {{ who }} {% endfor %}
  bare: {body: "Nothing to say."}
  huge:
    params: {word: {}}
    body: '{% for _ in range(1000) %}{{ word }}{% endfor %}'
"""


@asynccontextmanager
async def open_prompts(folder: Path, text: str = CONFIG) -> AsyncIterator[Asker]:
    async with open_asker(folder, packs=packs_of(configured(folder, text))) as asker:
        yield asker


async def text_of(asker: Asker, name: str, **arguments: str) -> str:
    made = await asker.result("prompts/get", name=name, arguments=arguments)
    [message] = made["messages"]
    assert (message["role"], message["content"]["type"]) == ("user", "text")
    return str(message["content"]["text"])


async def test_without_snippets_there_are_no_prompts(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker, open_legacy_asker(tmp_path) as legacy:
        assert await legacy.result("prompts/list") == {"prompts": []}
        listed = await asker.result("prompts/list")
        assert (listed["prompts"], listed["ttlMs"], listed["cacheScope"]) == ([], 60_000, "private")
        error = await asker.error("prompts/get", name="greet")
        assert (error["code"], error["data"]["field"]) == (-32602, "name")
        assert error["message"] == "unknown prompt 'greet'; there are: none"
        assert RESOURCES == {}


async def test_snippets_are_listed_with_their_parameters(tmp_path: Path) -> None:
    async with open_prompts(tmp_path) as asker:
        greeting, bare, huge = (await asker.result("prompts/list"))["prompts"]
        assert greeting == {
            "name": "greeting",
            "description": "A greeting",
            "arguments": [
                {"name": "who", "description": "Who is greeted", "required": True},
                {"name": "times", "description": "How often", "required": False},
                {"name": "mark", "required": False},
            ],
        }
        assert bare == {"name": "bare", "arguments": []}
        assert huge["arguments"] == [{"name": "word", "required": True}]


async def test_a_snippet_is_filled_in(tmp_path: Path) -> None:
    async with open_prompts(tmp_path) as asker:
        made = await asker.result("prompts/get", name="greeting", arguments={"who": "Ada"})
        assert made["description"] == "A greeting"
        assert await text_of(asker, "greeting", who="Ada") == "hello Ada hello Ada "
        assert await text_of(asker, "greeting", who="{{ times }}", times="1") == "hello {{ times }} "
        bare = await asker.result("prompts/get", name="bare")
        assert "description" not in bare
        assert bare["messages"][0]["content"]["text"] == "Nothing to say."


@pytest.mark.parametrize(
    ("params", "field", "told"),
    [
        ({"name": "greeting"}, "arguments", "needs a value for 'who'"),
        ({"name": "greeting", "arguments": {"times": "1"}}, "arguments", "needs a value for 'who'"),
        ({"name": "greeting", "arguments": {"who": "x", "whom": "y"}}, "arguments", "has no parameter 'whom'"),
        ({"name": "greeting", "arguments": {"who": 5}}, "params", "Expected `str`"),
        ({"name": "greeting", "arguments": {"who": None}}, "params", "Expected `str`"),
        (
            {"name": "huge", "arguments": {"word": "x" * (MAX_EXPANSION_CHARACTERS // 999 + 1)}},
            "arguments",
            "more than",
        ),
        ({"name": "greetings"}, "name", "unknown prompt 'greetings'; there are: greeting, "),
        ({"name": "x" * 10_000}, "name", "there are: "),
        ({}, "params", "name"),
    ],
)
async def test_what_does_not_fit_is_invalid_params(
    tmp_path: Path, params: dict[str, Any], field: str, told: str
) -> None:
    async with open_prompts(tmp_path) as asker:
        error = await asker.error("prompts/get", **params)
        assert (error["code"], error["data"]["field"]) == (-32602, field)
        assert told in error["message"]
        assert len(error["message"]) < 500


async def test_every_principal_has_the_prompts(tmp_path: Path) -> None:
    async with open_prompts(tmp_path) as asker:
        assert len((await Asker(asker.domain, STRANGER).result("prompts/list"))["prompts"]) == 3


@pytest.mark.parametrize(
    ("argument", "begun", "values"),
    [
        ("who", "", ["Ada"]),
        ("who", "A", ["Ada"]),
        ("who", "B", []),
        ("times", "", ["2"]),
        ("mark", "", []),
        ("nope", "", []),
    ],
)
async def test_arguments_are_completed_with_what_the_configuration_says(
    tmp_path: Path, argument: str, begun: str, values: list[str]
) -> None:
    async with open_prompts(tmp_path) as asker:
        ref = {"type": "ref/prompt", "name": "greeting"}
        asked = {"ref": ref, "argument": {"name": argument, "value": begun}}
        assert (await asker.result("completion/complete", **asked))["completion"]["values"] == values


async def test_a_reload_changes_the_prompts(tmp_path: Path) -> None:
    async with open_prompts(tmp_path) as asker:
        packs = asker.domain.services.packs
        assert isinstance(packs, ObservedPacks)
        await packs.use(configured(tmp_path, "snippets: {fresh: {body: 'Anew.'}}"))
        assert [prompt["name"] for prompt in (await asker.result("prompts/list"))["prompts"]] == ["fresh"]
        assert await text_of(asker, "fresh") == "Anew."
