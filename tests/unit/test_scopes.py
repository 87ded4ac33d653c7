"""Scopes: a closed grammar and what it allows (WIRE section 6, "Scopes"; HAZARDS T13)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.scopes import Access, Scope, Target, parse_scope

ADMIN, ADMIN_RO = Scope(None, False), Scope(None, True)
PROJECT, PROJECT_RO = Scope("abc", False), Scope("abc", True)


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("admin", ADMIN),
        ("admin:ro", ADMIN_RO),
        ("project:abc", PROJECT),
        ("project:abc:ro", PROJECT_RO),
        ("project:ro", Scope("ro", False)),
        ("project:ro:ro", Scope("ro", True)),
        (f"project:{'x' * 64}", Scope("x" * 64, False)),
    ],
)
def test_the_four_forms(text: str, scope: Scope) -> None:
    assert parse_scope(text) == scope


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "ADMIN",
            "Admin",
            "admin ",
            " admin",
            "admin\n",
            "admin\0",
            "admin:",
            "admin:rw",
            "admin:RO",
            "admin:ro:ro",
        ),
        *("administrator", "admin,project:abc", "admin:project:abc", "*", "root"),
        *(
            "project",
            "project:",
            "project::ro",
            "project:abc:",
            "project:abc:ro:ro",
            "project:abc:rw",
            "project:abc ro",
        ),
        *("project:abc\n", "project:abc\0", "project:abc:ro\n", "project: abc", "PROJECT:abc", "project:abc/def"),
        *("project:*", "project:../abc", "project\uff1aabc", "project:аbc", "project:\u0661", f"project:{'x' * 65}"),
    ],
)
def test_nothing_else_is_a_scope(text: str) -> None:
    assert parse_scope(text) is None


@given(
    st.one_of(
        st.text(max_size=30),
        st.lists(
            st.sampled_from(["admin", "project", ":", "ro", "abc", " ", "\n", "\0", "\uff1a", "A", "-", "_", "*"])
        ).map("".join),
    )
)
def test_the_grammar_is_closed(text: str) -> None:
    scope = parse_scope(text)
    parts = text.split(":")
    is_read_only = parts[-1:] == ["ro"] and len(parts) > 1 and parts != ["project", "ro"]
    parts = parts[:-1] if is_read_only else parts
    is_project = len(parts) == 2 and parts[0] == "project" and re.fullmatch("[A-Za-z0-9_-]{1,64}", parts[1], re.ASCII)
    if parts == ["admin"]:
        assert scope == Scope(None, is_read_only)
    elif is_project:
        assert scope == Scope(parts[1], is_read_only)
    else:
        assert scope is None


@given(st.from_regex(r"\A[A-Za-z0-9_-]{1,64}\Z"), st.booleans())
def test_every_scope_is_read_back_as_it_was_meant(project_id: str, read_only: bool) -> None:
    text = f"project:{project_id}{':ro' if read_only else ''}"
    assert parse_scope(text) == Scope(project_id, read_only)


# WIRE section 6: the whole algebra. One letter a scope: admin, admin:ro, project, project:ro.
ALLOWED: dict[tuple[Access, Target], str] = {
    ("read", "global"): "yyyy",
    ("read", "project"): "yyyy",
    ("write", "global"): "ynnn",
    ("write", "project"): "ynyn",
    ("admin", "global"): "ynnn",
    ("admin", "project"): "ynnn",
}


@pytest.mark.parametrize(("what", "answers"), ALLOWED.items())
def test_what_a_scope_may_call(what: tuple[Access, Target], answers: str) -> None:
    access, target = what
    scopes = (ADMIN, ADMIN_RO, PROJECT, PROJECT_RO)
    assert "".join("y" if scope.allows(access, target) else "n" for scope in scopes) == answers


def test_what_a_scope_covers() -> None:
    assert all(scope.covers(id) for scope in (ADMIN, ADMIN_RO) for id in ("abc", "other", ""))
    assert all(scope.covers("abc") and not scope.covers("other") for scope in (PROJECT, PROJECT_RO))
    assert not PROJECT.covers("ABC")
    assert not PROJECT.covers("")
