"""Names, ids, paths and values of any kind: refused with a reason, or kept as they are (HAZARDS T20, T21)."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oubliette.agents.environment import Environment
from oubliette.environments import Environments, check_environment
from oubliette.errors import Conflict, InvalidParams, NotFound, OublietteError
from tests.helpers.domain import OWNER, Domain, open_domain

PATHS = ["", ".", "..", "../..", "/etc/passwd", "a/../../b", "workspaces", ".trash", "default", "prj_" + "0" * 32]
SHELL = ["-rf", "$(id)", ";", "`id`", "a\nb", "a\0b"]
UNICODE = ["é", "e\u0301", "\u202e", "x" * 200, "x" * 201, "x" * 4096]
HOSTILE = st.sampled_from([*PATHS, *SHELL, *UNICODE])
TEXT = st.one_of(HOSTILE, st.text(max_size=20))
OPERATIONS = st.lists(st.tuples(st.sampled_from(["project", "workspace", "delete"]), TEXT), max_size=8)


def in_a_domain(work: Callable[[Domain, Path], Awaitable[None]]) -> None:
    """Runs `work` on a domain of its own, beside which a canary must survive."""
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        root = Path(folder)
        (root / "canary").write_text("alive")
        data_dir = root / "data"

        async def main() -> None:
            async with open_domain(data_dir) as domain:
                await work(domain, data_dir)

        trio.run(main)
        assert (root / "canary").read_text() == "alive"
        assert sorted(path.name for path in root.iterdir()) == ["canary", "data"]
        assert {path.name for path in data_dir.iterdir()} <= {"workspaces", "env"}


async def refusal_of(work: Awaitable[object]) -> OublietteError | None:
    try:
        await work
    except OublietteError as error:
        return error
    return None


def in_words(values: dict[str, str]) -> InvalidParams | None:
    try:
        check_environment(values)
    except InvalidParams as error:
        return error
    return None


@settings(max_examples=40, deadline=None)
@given(OPERATIONS)
@example([("project", "é"), ("project", "e\u0301"), ("delete", "..")])
def test_names_and_ids_stay_names_and_ids(operations: list[tuple[str, str]]) -> None:
    async def work(domain: Domain, data_dir: Path) -> None:
        created: dict[str, str] = {}
        for what, text in operations:
            error = await refusal_of(_operate(domain, what, text, created))
            assert error is None or (error.field and isinstance(error, InvalidParams | Conflict | NotFound))
        listed = (await domain.run(OWNER, "project_list"))["projects"]
        assert {one["project_id"]: one["name"] for one in listed} == {"default": "default", **created}
        folders = {path.name for path in (data_dir / "workspaces").iterdir()} - {".trash"}
        assert folders == {"default", *created}
        for project in domain.services.projects.all():
            known = {one.workspace_id for one in domain.services.projects.workspaces(project)}
            assert {path.name for path in (data_dir / "workspaces" / project.project_id).iterdir()} == known

    in_a_domain(work)


async def _operate(domain: Domain, what: str, text: str, created: dict[str, str]) -> None:
    """The text as a name, as an id, or, in a deletion, as both: the id of who has that name."""
    if what == "project":
        view = await domain.run(OWNER, "project_create", name=text)
        assert view["name"] == text
        created[view["project_id"]] = text
    elif what == "workspace":
        view = await domain.run(OWNER, "workspace_create", project_id="default", name=text)
        assert view["name"] == text
        await domain.run(OWNER, "workspace_delete", project_id="default", workspace_id=text)
    else:
        project_id = next((id for id, name in created.items() if name == text), text)
        await domain.run(OWNER, "project_delete", project_id=project_id)
        del created[project_id]


@settings(max_examples=100, deadline=None)
@example({"A": "\ud800"})
@given(
    st.dictionaries(
        st.one_of(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), TEXT), TEXT, min_size=1, max_size=5
    )
)
def test_values_come_back_as_they_were_or_are_refused_unseen(values: dict[str, str]) -> None:
    marked = {name: f"canary{value}" for name, value in values.items()}
    error = in_words(marked)
    if error is not None:
        assert error.field is not None
        assert "canary" not in error.message + error.field
        return
    with tempfile.TemporaryDirectory(prefix="oub-") as folder:
        owner = "prj_" + "0" * 32
        Environments(Path(folder)).save(owner, check_environment(marked))
        again = Environments(Path(folder))
        again.reconcile({owner})
        assert again.names(owner) == sorted(marked)
        assert again.read(owner) == Environment(marked)


@settings(max_examples=20, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
        max_leaves=5,
    )
)
def test_an_env_of_any_json_is_refused_by_its_name(value: Any) -> None:
    async def work(domain: Domain, data_dir: Path) -> None:
        error = await refusal_of(domain.run(OWNER, "project_create", name="x", env=value))
        if error is None:
            (_, view) = (await domain.run(OWNER, "project_list"))["projects"]
            assert view["env"] == sorted(value or {})
        else:
            assert (error.field or "").partition(".")[0].partition("[")[0] == "env"

    in_a_domain(work)
