"""The expansion of snippets: strict, in a sandbox, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from ot_pack.snippets import MAX_EXPANSION_CHARACTERS, MISSING, Param, Snippet, SnippetError, expand
from tests.unit.ot_pack.harness import RESEARCH


def of(body: str, **params: Any) -> Snippet:
    return Snippet(name="s", params={name: Param(default=default) for name, default in params.items()}, body=body)


def test_values_and_defaults_are_filled_in() -> None:
    assert expand(RESEARCH, {"topic": "trio"}).splitlines()[0] == 'results = brave.search(query="trio", count=5)'
    assert expand(RESEARCH, {"topic": "trio", "count": 7}).splitlines()[0].endswith("count=7)")


def test_none_is_a_value() -> None:
    assert expand(of("{{ x }}", x=None), {}) == "None"
    assert expand(of("{{ x is none }}", x=1), {"x": None}) == "True"


@pytest.mark.parametrize(("body", "text"), [("a\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("", ""), ("\na", "\na")])
def test_one_line_break_at_the_end_is_left_out(body: str, text: str) -> None:
    assert expand(of(body), {}) == text


def test_a_value_is_text_and_never_a_template() -> None:
    evil = '{{ 7 * 7 }} {% for i in x %} </script> " & é 😀\n'
    assert expand(of("[{{ x }}]", x=""), {"x": evil}) == f"[{evil}]"


@pytest.mark.parametrize(
    ("snippet", "values", "message"),
    [
        (of("{{ x }}", x=MISSING), {}, "snippet 's' needs a value for 'x'"),
        (of("{{ x }}", x=1), {"y": 1}, "snippet 's' has no parameter 'y'. It has: x"),
        (of("a"), {"y": 1}, "snippet 's' has no parameter 'y'. It has: none"),
        (of("{{ y }}", x=1), {}, "snippet 's': 'y' is undefined"),
        (of("{{ x.y }}", x=1), {}, "snippet 's': 'int object' has no attribute 'y'"),
        (of("{% if %}"), {}, "snippet 's': Expected an expression, got 'end of statement block'"),
        (of("{{ 1 / x }}", x=0), {}, "snippet 's': division by zero"),
        (of("{{ x() }}", x=1), {}, "snippet 's': 'int' object is not callable"),
        (of("{% include 'a' %}"), {}, "snippet 's': no loader for this environment specified"),
    ],
)
def test_what_cannot_be_expanded_says_why(snippet: Snippet, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SnippetError) as refused:
        expand(snippet, values)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "body",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ x.__init__.__globals__ }}",
        "{{ [].append.__self__.__class__.__base__.__subclasses__() }}",
        "{{ '{0.__class__}'.format(x) }}",
    ],
)
def test_a_template_stays_in_the_sandbox(body: str) -> None:
    with pytest.raises(SnippetError, match=r"unsafe|undefined"):
        expand(of(body, x="a"), {})


@pytest.mark.parametrize(
    "body",
    [
        "{{ 'x' * n }}",
        "{{ n * ['x'] }}",
        "{{ 9 ** n }}",
        "{% for i in range(n // 10000) %}{% for j in range(1000) %}xxxxxxxxxx{% endfor %}{% endfor %}",
        "{% for i in range(n) %}{% endfor %}",
    ],
)
def test_what_comes_out_is_bounded(body: str) -> None:
    with pytest.raises(SnippetError, match=r"more than 262144 characters would come out|Range too big"):
        expand(of(body, n=10**9), {})


def test_what_comes_out_may_be_as_long_as_the_bound() -> None:
    assert len(expand(of("{{ x * n }}", x="é", n=MAX_EXPANSION_CHARACTERS), {})) == MAX_EXPANSION_CHARACTERS
    assert expand(of("{{ 3 * 4 ** 2 - 2.5 * 2 }}"), {}) == "43.0"
    with pytest.raises(SnippetError, match="would come out"):
        expand(of("{{ x * n }}x", x="é", n=MAX_EXPANSION_CHARACTERS), {})
