"""API tokens (WIRE section 6, "Tokens"; HAZARDS T13, T15, T16)."""

from __future__ import annotations

import ast
import hashlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oubliette
from oubliette.errors import InternalError, InvalidParams, NotFound, Unauthorized
from oubliette.records import TokenRecord
from oubliette.scopes import Scope
from oubliette.tokens import ADMIN_TOKEN_FILE, Tokens
from tests.helpers.records import MemoryRecords

NOW = 1_800_000_000.0


class Clock:
    """The wall clock, moved by hand."""

    def __init__(self) -> None:
        self.now = NOW


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Clock:
    wall = Clock()
    monkeypatch.setattr("oubliette.tokens.time.time", lambda: wall.now)
    return wall


async def test_a_token_has_the_form_of_the_contract_and_works() -> None:
    tokens = Tokens(MemoryRecords())
    token, record = await tokens.create("mine", "project:abc:ro")
    match = re.fullmatch(r"oub_([a-z0-9]+)_([0-9a-f]{64})", token)
    assert match is not None
    assert match[1] == record.token_id
    principal = tokens.authenticate(token)
    assert (principal.token_id, principal.scope) == (record.token_id, Scope("abc", True))


async def test_only_the_hash_is_kept() -> None:
    """HAZARDS T15."""
    records = MemoryRecords()
    token, record = await Tokens(records).create("mine", "admin")
    assert record.digest == hashlib.sha256(token.encode()).digest()
    secret = token.rpartition("_")[2]
    assert secret not in repr(records.token_records)
    assert secret.encode() not in msgspec.msgpack.encode(records.token_records)


async def test_a_token_survives_a_restart() -> None:
    records = MemoryRecords()
    token, record = await Tokens(records).create("mine", "admin")
    assert Tokens(records).authenticate(token).token_id == record.token_id


async def test_secrets_are_never_the_same() -> None:
    tokens = Tokens(MemoryRecords())
    made = [(await tokens.create("x", "admin"))[0] for _ in range(20)]
    assert len({token.rpartition("_")[2] for token in made}) == 20


def mutations(token: str) -> Iterator[str]:
    head, _, secret = token.rpartition("_")
    yield ""
    yield "oub_"
    yield token[:-1]
    yield token + "0"
    yield token + "\n"
    yield f"{head}_{secret[:-1]}{'0' if secret[-1] != '0' else '1'}"
    yield f"{head}_{secret.upper()}" if secret.upper() != secret else "oub__"
    yield token.replace("oub_", "OUB_")
    yield f"oub_nobody_{secret}"
    yield f"{head}x_{secret}"
    yield f"Bearer {token}"
    yield f" {token}"
    yield f"{head}_{'é' * 64}"


async def test_anything_but_the_token_itself_is_refused() -> None:
    tokens = Tokens(MemoryRecords())
    token, _ = await tokens.create("mine", "admin")
    for wrong in mutations(token):
        with pytest.raises(Unauthorized) as refused:
            tokens.authenticate(wrong)
        assert token.rpartition("_")[2] not in refused.value.message


async def test_the_secret_of_another_token_is_refused() -> None:
    tokens = Tokens(MemoryRecords())
    mine, _ = await tokens.create("mine", "admin")
    _, yours = await tokens.create("yours", "admin")
    with pytest.raises(Unauthorized):
        tokens.authenticate(f"oub_{yours.token_id}_{mine.rpartition('_')[2]}")


async def test_a_token_expires(wall: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oubliette.clock.seconds_from_now", lambda seconds: "2027-01-15T08:00:10.000Z")
    tokens = Tokens(MemoryRecords())
    token, record = await tokens.create("mine", "admin", 10)
    assert record.expires_at == "2027-01-15T08:00:10.000Z"
    wall.now = NOW + 9.999
    assert tokens.authenticate(token).token_id == record.token_id
    for wall.now in (NOW + 10, NOW + 10**9):
        with pytest.raises(Unauthorized, match="expired"):
            tokens.authenticate(token)


async def test_an_expiry_lies_so_many_seconds_ahead() -> None:
    tokens = Tokens(MemoryRecords())
    token, record = await tokens.create("mine", "admin", 3600)
    assert record.expires_at is not None
    assert record.created_at < record.expires_at
    assert tokens.authenticate(token).token_id == record.token_id
    for seconds in (0.0, -1.0):
        expired, _ = await tokens.create("mine", "admin", seconds)
        with pytest.raises(Unauthorized):
            tokens.authenticate(expired)


@pytest.mark.parametrize("scope", ["", "ADMIN", "admin ", "admin\n", "project:", "project:x:ro:ro", "project:x/y"])
async def test_no_token_is_made_with_a_scope_that_is_none(scope: str) -> None:
    records = MemoryRecords()
    with pytest.raises(InvalidParams) as refused:
        await Tokens(records).create("mine", scope)
    assert refused.value.field == "scope"
    assert records.token_records == {}


async def test_a_recorded_scope_that_is_unknown_gives_no_rights() -> None:
    """HAZARDS T13: at load as at creation."""
    records = MemoryRecords()
    token, record = await Tokens(records).create("mine", "admin")
    records.token_records[record.token_id] = msgspec.structs.replace(record, scope="superadmin")
    with pytest.raises(Unauthorized):
        Tokens(records).authenticate(token)


async def test_a_revoked_token_is_worthless_at_once_and_for_good() -> None:
    records = MemoryRecords()
    tokens = Tokens(records)
    token, record = await tokens.create("mine", "admin")
    other, _ = await tokens.create("other", "admin")
    await tokens.revoke(record.token_id)
    for loaded in (tokens, Tokens(records)):
        with pytest.raises(Unauthorized):
            loaded.authenticate(token)
        assert loaded.authenticate(other)
    with pytest.raises(NotFound) as refused:
        await tokens.revoke(record.token_id)
    assert refused.value.field == "token_id"


async def test_a_revocation_that_is_not_recorded_is_not_confirmed() -> None:
    class FailingRecords(MemoryRecords):
        async def delete_token(self, token_id: str) -> None:
            raise InternalError("records cannot be written right now")

    tokens = Tokens(FailingRecords())
    token, record = await tokens.create("mine", "admin")
    with pytest.raises(InternalError):
        await tokens.revoke(record.token_id)
    assert tokens.authenticate(token)


async def test_the_list_is_oldest_first() -> None:
    records = MemoryRecords()
    tokens = Tokens(records)
    made = [(await tokens.create(name, "admin"))[1] for name in "abc"]
    assert [record.name for record in tokens.all()] == [record.name for record in sorted(made, key=_created)]


def _created(record: TokenRecord) -> str:
    return record.created_at


async def test_the_last_use_is_noted_seldom(wall: Clock) -> None:
    class NotingRecords(MemoryRecords):
        uses: list[str] = []  # noqa: RUF012  # one test's own class

        def post_token_use(self, token_id: str, when: str) -> None:
            self.uses.append(token_id)

    records = NotingRecords()
    tokens = Tokens(records)
    token, record = await tokens.create("mine", "admin")
    for wall.now in (NOW, NOW + 1, NOW + 59, NOW + 61, NOW + 62):
        tokens.authenticate(token)
    assert records.uses == [record.token_id] * 2


# The first start


async def test_the_first_start_writes_an_admin_token_that_nobody_else_can_read(tmp_path: Path) -> None:
    records = MemoryRecords()
    tokens = Tokens(records)
    path = await tokens.ensure_admin(tmp_path)
    assert path == tmp_path / ADMIN_TOKEN_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    principal = tokens.authenticate(path.read_text().strip())
    assert principal.scope == Scope(None, False)
    assert await Tokens(records).ensure_admin(tmp_path) is None
    assert len(records.token_records) == 1


async def test_a_planted_file_or_link_is_replaced(tmp_path: Path) -> None:
    """HAZARDS T11: the token never goes through somebody else's file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("canary")
    elsewhere.chmod(0o666)
    (tmp_path / ADMIN_TOKEN_FILE).symlink_to(elsewhere)
    path = await Tokens(MemoryRecords()).ensure_admin(tmp_path)
    assert path is not None
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert elsewhere.read_text() == "canary"


async def test_an_admin_token_that_cannot_be_written_is_not_recorded(tmp_path: Path) -> None:
    """Else the next start would find a token, and make no other: nobody could ever come in."""
    records = MemoryRecords()
    with pytest.raises(FileNotFoundError):
        await Tokens(records).ensure_admin(tmp_path / "missing")
    assert records.token_records == {}
    assert await Tokens(records).ensure_admin(tmp_path) is not None


async def test_an_admin_token_that_cannot_be_recorded_is_made_anew(tmp_path: Path) -> None:
    class FailingRecords(MemoryRecords):
        async def save_token(self, record: TokenRecord) -> None:
            raise InternalError("records cannot be written right now")

    with pytest.raises(InternalError):
        await Tokens(FailingRecords()).ensure_admin(tmp_path)
    records = MemoryRecords()
    tokens = Tokens(records)
    path = await tokens.ensure_admin(tmp_path)
    assert path is not None
    assert tokens.authenticate(path.read_text().strip())


# HAZARDS T16: nothing secret is compared with `==`

SECRETS = {"digest", "_digest", "secret", "token", "api_key", "password"}


def names_in(node: ast.AST) -> set[str]:
    """The names of a compared value: of what it is, and of what it is made by."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return names_in(node.func) if isinstance(node, ast.Call) else set()


def comparisons_of_secrets(source: str) -> list[int]:
    """The lines on which `==` or `!=` compares a secret."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            compared: set[str] = set().union(*(names_in(side) for side in (node.left, *node.comparators)))
            found += [node.lineno] if compared & SECRETS else []
    return found


@pytest.mark.parametrize("source", ["a.digest == b", "x != secret", "_digest(t) == d", "key == call.api_key"])
def test_the_check_finds_comparisons(source: str) -> None:
    assert comparisons_of_secrets(source) == [1]


def test_no_secret_is_compared_with_an_equals_sign() -> None:
    found: list[Any] = []
    for path in sorted(Path(oubliette.__file__).parent.rglob("*.py")):
        found += [f"{path.name}:{line}" for line in comparisons_of_secrets(path.read_text())]
    assert found == []
    assert "hmac.compare_digest(" in (Path(oubliette.__file__).parent / "tokens.py").read_text()
