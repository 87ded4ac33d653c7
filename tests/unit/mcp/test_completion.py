"""`completion/complete`, `prompts/list` and `prompts/get`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oubliette.mcp import completion, prompts
from oubliette.mcp.prompts import Prompt
from tests.helpers.domain import STRANGER
from tests.unit.mcp.harness import Asker, open_asker, open_legacy_asker

TEMPLATE = {"type": "ref/resource", "uri": "oubliette://sessions/{id}/events"}


MANY = Prompt(
    entry={"name": "greet"},
    messages=lambda arguments: [],
    complete=lambda argument, value: [f"{argument}:{value}{number}" for number in range(150)],
)


def completing(ref: Any, name: str = "id", value: str = "") -> dict[str, Any]:
    return {"ref": ref, "argument": {"name": name, "value": value}}


async def test_the_ids_of_sessions_are_completed(tmp_path: Path) -> None:
    async with open_asker(tmp_path) as asker:
        ids = [(await asker.domain.start()).id for _ in range(3)]
        found = (await asker.result("completion/complete", **completing(TEMPLATE)))["completion"]
        assert (sorted(found.pop("values")), found) == (sorted(ids), {"total": 3, "hasMore": False})
        one = (await asker.result("completion/complete", **completing(TEMPLATE, value=ids[1])))["completion"]
        assert one["values"] == [ids[1]]
        for nothing in (completing(TEMPLATE, value="nope"), completing(TEMPLATE, name="other")):
            assert (await asker.result("completion/complete", **nothing))["completion"]["values"] == []
        stranger = await Asker(asker.domain, STRANGER).error("completion/complete", **completing(TEMPLATE))
        assert stranger["data"]["kind"] == "not_found"


async def test_the_earlier_revisions_complete_too(tmp_path: Path) -> None:
    async with open_legacy_asker(tmp_path) as asker:
        session = await asker.domain.start()
        found = await asker.result("completion/complete", **completing(TEMPLATE, value="ses_"))
        assert found == {"completion": {"values": [session.id], "total": 1, "hasMore": False}}


async def test_at_most_100_values_are_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "offered", lambda services: {"greet": MANY})
    async with open_asker(tmp_path) as asker:
        reference = {"type": "ref/prompt", "name": "greet"}
        found = (await asker.result("completion/complete", **completing(reference, "name", "x")))["completion"]
        assert found["values"] == [f"name:x{number}" for number in range(completion.MAX_VALUES)]
        assert (found["total"], found["hasMore"]) == (150, True)


@pytest.mark.parametrize(
    "params",
    [
        completing({"type": "ref/resource", "uri": "nope"}),
        completing({"type": "ref/prompt", "name": "nope"}),
        completing({"type": "ref/other", "name": "greet"}),
        completing({}),
        {"ref": TEMPLATE},
        {"ref": TEMPLATE, "argument": {"name": "id"}},
    ],
)
async def test_what_is_unknown_or_malformed_is_invalid_params(tmp_path: Path, params: dict[str, Any]) -> None:
    async with open_asker(tmp_path) as asker:
        assert (await asker.error("completion/complete", **params))["code"] == -32602
