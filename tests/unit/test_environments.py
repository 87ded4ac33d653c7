"""`env` values: written, handed to agents, never shown (WIRE section 6; HAZARDS G17)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from oubliette.agents.environment import DAEMON_VARIABLES, Environment
from oubliette.environments import (
    MAX_BYTES,
    MAX_NAME,
    MAX_VALUE_BYTES,
    MAX_VARIABLES,
    UNREADABLE,
    Environments,
    check_environment,
)
from oubliette.errors import InternalError, InvalidParams

OWNER, OTHER = "prj_" + "a" * 32, "wsp_" + "b" * 32
CANARY = "s3cr3t-canary"


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    return Environments(tmp_path)


# What is one


def refusal(values: dict[str, str]) -> InvalidParams:
    with pytest.raises(InvalidParams) as refused:
        check_environment(values)
    assert CANARY not in refused.value.message
    assert CANARY not in (refused.value.field or "")
    return refused.value


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "A\0", "a" * (MAX_NAME + 1), CANARY])
def test_a_name_that_is_none_is_refused_and_not_repeated(name: str) -> None:
    error = refusal({name: CANARY})
    assert (error.field, "letters, digits and _" in error.message) == ("env", True)


@pytest.mark.parametrize("name", sorted(DAEMON_VARIABLES))
def test_what_the_daemon_sets_is_its_own(name: str) -> None:
    error = refusal({name: CANARY})
    assert (error.field, error.message) == (f"env.{name}", f"{name} is set by the daemon itself")


def test_a_value_is_bounded_and_holds_no_nul() -> None:
    assert refusal({"A": CANARY + "\0"}).field == "env.A"
    assert refusal({"A": CANARY + "ä" * (MAX_VALUE_BYTES // 2)}).field == "env.A"
    whole = check_environment({"A": "ä" * (MAX_VALUE_BYTES // 2), "B": "", "OUBLIETTE_API_KEY": "x", "_": "\n"})
    assert sorted(whole) == ["A", "B", "OUBLIETTE_API_KEY", "_"]


def test_all_of_them_together_are_bounded() -> None:
    many = {f"A{number}": "x" for number in range(MAX_VARIABLES)}
    assert len(check_environment(many)) == MAX_VARIABLES
    assert refusal({**many, "B": CANARY}).field == "env"
    large = {f"A{number}": "x" * MAX_VALUE_BYTES for number in range(MAX_BYTES // MAX_VALUE_BYTES)}
    assert refusal({**large, "B": CANARY}).field == "env"


# Where they lie


def test_they_come_back_and_lie_in_a_file_of_mode_0600(environments: Environments, tmp_path: Path) -> None:
    os.umask(os.umask(0))
    values = Environment({"B": CANARY, "A": "multi\nline \x7f ünï"})
    environments.save(OWNER, values)
    assert environments.read(OWNER) == values
    assert environments.names(OWNER) == ["A", "B"]
    assert CANARY not in repr(environments.read(OWNER))
    (file,) = (tmp_path / "env").iterdir()
    assert (file.name, stat.S_IMODE(file.stat().st_mode)) == (f"{OWNER}.json", 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_none_are_no_file(environments: Environments, tmp_path: Path) -> None:
    environments.save(OWNER, Environment())
    assert environments.names(OWNER) == []
    assert not (tmp_path / "env").exists()


def test_removed_ones_are_gone(environments: Environments, tmp_path: Path) -> None:
    environments.save(OWNER, Environment({"A": CANARY}))
    for _ in range(2):
        environments.remove([OWNER, OTHER])
    assert environments.names(OWNER) == []
    assert list((tmp_path / "env").iterdir()) == []


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_nothing(
    environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    environments.save(OTHER, Environment({"A": "x"}))

    def fail(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        environments.save(OWNER, Environment({"A": CANARY}))
    assert environments.names(OWNER) == []
    assert [file.name for file in (tmp_path / "env").iterdir()] == [f"{OTHER}.json"]


# The start


def test_at_the_start_what_belongs_to_nobody_goes_and_the_rest_is_known(
    environments: Environments, tmp_path: Path
) -> None:
    environments.save(OWNER, Environment({"A": "x"}))
    environments.save(OTHER, Environment({"B": "x"}))
    folder = tmp_path / "env"
    (folder / f"{OWNER}.json.{'0' * 16}").write_text(CANARY)
    (folder / "notes.txt").write_text("an operator's")
    again = Environments(tmp_path)
    again.reconcile({OWNER, "default"})
    assert (again.names(OWNER), again.names(OTHER)) == (["A"], [])
    assert sorted(file.name for file in folder.iterdir()) == ["notes.txt", f"{OWNER}.json"]


@pytest.mark.parametrize("content", ["", "{", '{"A": 5}', f'["{CANARY}"]', f'{{"A": "{CANARY}"', "\xff"])
def test_damaged_ones_are_not_taken_for_none(
    environments: Environments, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    """An agent that starts without its variables may do the wrong thing: it does not start."""
    environments.save(OWNER, Environment({"A": "x"}))
    (tmp_path / "env" / f"{OWNER}.json").write_text(content, encoding="latin-1")
    again = Environments(tmp_path)
    again.reconcile({OWNER})
    assert again.names(OWNER) == [UNREADABLE]
    with pytest.raises(InternalError) as refused:
        again.read(OWNER)
    assert CANARY not in refused.value.message + caplog.text


def test_a_link_is_not_read(environments: Environments, tmp_path: Path) -> None:
    environments.save(OWNER, Environment({"A": "x"}))
    (tmp_path / "outside").write_text('{"A": "other"}')
    file = tmp_path / "env" / f"{OWNER}.json"
    file.unlink()
    file.symlink_to(tmp_path / "outside")
    with pytest.raises(InternalError):
        environments.read(OWNER)


def test_a_file_changed_by_hand_gives_no_variable_of_the_daemons(environments: Environments, tmp_path: Path) -> None:
    environments.save(OWNER, Environment({"A": "x"}))
    (tmp_path / "env" / f"{OWNER}.json").write_text('{"A": "x", "OUBLIETTE_SOCKET": "/evil"}')
    assert environments.read(OWNER) == {"A": "x"}
