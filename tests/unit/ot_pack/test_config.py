"""The `ot` pack's keys of the configuration, and what each refusal says (issue 5; HAZARDS T27, T35)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ot_pack import names
from ot_pack.config import PackConfig, ServerConfig, Variables, read
from ot_pack.document import ConfigError, Document
from ot_pack.snippets import MISSING, Param, Snippet
from ot_pack.topics import Topic

FILE = Path("oubliette.yaml")
DEMO = '"""A pack."""\npack = "demo"\n__all__ = ["foo", "bar"]\n\ndef foo() -> None: ...\n\ndef bar() -> None: ...\n'


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, files: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> PackConfig:
    """The configuration in `text`, read from ./oubliette.yaml with `files` beside it."""
    for name, content in {str(FILE): text, **(files or {})}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    return read(Document(FILE).read(), FILE.parent, environ or {})


def refusal(text: str, files: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, files, environ)
    return str(caught.value)


# --- what is read ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# nothing\n", "aliases:\nservers:\nsnippets:\n", "relay: {x: 1}\nlog: no\n"])
def test_without_its_keys_everything_has_its_default(text: str) -> None:
    assert load(text) == PackConfig()


def test_a_configuration_in_full() -> None:
    text = """
aliases: {ws: github.search, mine: demo.foo, new: project.create}
snippets:
  brv_research:
    description: Search web and extract structured findings
    params:
      topic: {description: Topic to research, example: Python}
      count: {default: 5, description: Number of sources}
      strict: {default: }
    body: |
      results = brave.search(query="{{ topic }}", count={{ count }}{% if strict %}, strict{% endif %})
servers:
  github: {command: npx, args: [-y, "${WHAT}"], env: {TOKEN: "x${SECRET}"}, timeout_seconds: 5}
  docs: {url: "https://${HOST}:8443/mcp?a=b", headers: {Authorization: "Bearer ${SECRET}"}}
packs: [demo.py]
topics:
  - {pattern: "notes*", file: notes.yaml}
  - {pattern: "*", file: all/rest.yaml}
prompts: sub/prompts.yaml
"""
    files = {"demo.py": DEMO, "sub/prompts.yaml": "packs:\n  demo: Be brief.\n  later: |\n    Two\n    lines\n"}
    loaded = load(text, files, {"WHAT": "server", "SECRET": "canary", "HOST": "example.com"})
    assert loaded.aliases == {"ws": "github.search", "mine": "demo.foo", "new": "project.create"}
    assert loaded.snippets["brv_research"] == Snippet(
        name="brv_research",
        description="Search web and extract structured findings",
        params={
            "topic": Param(description="Topic to research", default=MISSING, example="Python"),
            "count": Param(description="Number of sources", default=5, example=MISSING),
            "strict": Param(description="", default=None, example=MISSING),
        },
        body='results = brave.search(query="{{ topic }}", count={{ count }}{% if strict %}, strict{% endif %})\n',
    )
    github, docs = loaded.servers["github"], loaded.servers["docs"]
    assert (github.command, github.args, dict(github.env), github.url) == (
        "npx",
        ("-y", "server"),
        {"TOKEN": "xcanary"},
        "",
    )
    assert (github.timeout_seconds, docs.timeout_seconds) == (5, 60)
    assert (docs.url, dict(docs.headers)) == ("https://example.com:8443/mcp?a=b", {"Authorization": "Bearer canary"})
    assert (docs.command, docs.args, dict(docs.env)) == ("", (), {})
    assert list(loaded.local["demo"].tools) == ["foo", "bar"]
    assert loaded.topics == (
        Topic(pattern="notes*", file="notes.yaml"),
        Topic(pattern="*", file="all/rest.yaml"),
    )
    assert loaded.instructions == {"demo": "Be brief.", "later": "Two\nlines\n"}
    assert loaded.problems == {}
    assert "canary" not in repr(loaded)


def test_files_are_relative_to_the_configuration_file(tmp_path: Path) -> None:
    for name, content in {
        "packs/demo.py": DEMO,
        "prompts.yaml": "packs: {demo: x}",
        "o.yaml": "packs: [packs/*.py]",
    }.items():
        path = tmp_path / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    loaded = read(Document(Path("etc/o.yaml")).read(), Path("etc"), {})
    assert loaded.local["demo"].place == "etc/packs/demo.py:2"
    assert loaded.instructions == {"demo": "x"}


def test_without_an_environment_references_stay_as_they_are() -> None:
    Path(FILE).write_text("servers: {a: {url: '${URL}', headers: {K: '${KEY}'}}, b: {command: c, env: {K: '${KEY}'}}}")
    loaded = read(Document(FILE).read(), FILE.parent, None)
    assert (loaded.servers["a"].url, loaded.servers["a"].headers["K"]) == ("${URL}", "${KEY}")
    assert loaded.servers["b"].env == {"K": "${KEY}"}


# --- refusals ----------------------------------------------------------------------------------------------------

LETTERS = "letters, digits, '_' and '-' that begins with a letter or a digit"
OWN = "which is a name of the daemon's own"
SCALAR = "a string, a number, true, false or nothing"
PORTS = "must be an http or https URL with a host"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aliases: []", "1: aliases: must be a mapping of keys to values"),
        ("aliases: {a.b: demo.foo}", f"1: aliases.a.b: must be a name of 1 to 64 {LETTERS}, not a.b"),
        ("aliases: {-a: demo.foo}", f"1: aliases.-a: must be a name of 1 to 64 {LETTERS}, not -a"),
        (f"aliases: {{{'a' * 65}: demo.foo}}", None),
        ("aliases: {a: 5}", "1: aliases.a: must be a tool's name: pack.tool, not 5"),
        ("aliases: {a: demo}", '1: aliases.a: must be a tool\'s name, pack.tool, not "demo"'),
        ("aliases: {a: 'demo. x'}", '1: aliases.a: must be a tool\'s name, pack.tool, not "demo. x"'),
        ("aliases:\n  a: b\n  a: c", "3: aliases.a: stands twice, first in line 2"),
        ("servers: {a b: {command: c}}", f"1: servers.a…: must be a name of 1 to 32 {LETTERS}, not a…"),
        (f"servers: {{{'a' * 33}: {{command: c}}}}", None),
        ("servers: {a: {}}", "1: servers.a: a server needs a command or a url"),
        ("servers: {a: }", "1: servers.a: a server needs a command or a url"),
        ("servers: {a: npx}", "1: servers.a: must be a mapping of keys to values"),
        ("servers: {a: {command: ''}}", "1: servers.a.command: a server needs a command or a url"),
        (
            "servers:\n  a:\n    command: c\n    url: http://a",
            "4: servers.a.url: a server has a command or a url, not both",
        ),
        ("servers: {a: {url: 'http://a', args: [b]}}", "1: servers.a.args: goes with a command: a url has headers"),
        ("servers: {a: {url: 'http://a', env: {B: c}}}", "1: servers.a.env: goes with a command: a url has headers"),
        (
            "servers: {a: {command: c, headers: {B: c}}}",
            "1: servers.a.headers: goes with a url: a command has args and env",
        ),
        ("servers: {a: {url: 'ftp://a'}}", f"1: servers.a.url: {PORTS}"),
        ("servers: {a: {url: 'http://'}}", f"1: servers.a.url: {PORTS}"),
        ("servers: {a: {url: 'http:///x'}}", f"1: servers.a.url: {PORTS}"),
        ("servers: {a: {url: 'http://a:0'}}", f"1: servers.a.url: {PORTS}"),
        ("servers: {a: {url: 'http://a:65536'}}", f"1: servers.a.url: {PORTS}"),
        ("servers: {a: {url: 'http://a b'}}", f"1: servers.a.url: {PORTS}"),
        ('servers: {a: {url: "http://a/\\n"}}', f"1: servers.a.url: {PORTS}"),
        ("servers: {a: {url: 5}}", f"1: servers.a.url: {PORTS}"),
        (
            "servers: {a: {command: c, timeout_seconds: 0}}",
            "1: servers.a.timeout_seconds: must be a number of seconds from 0.1 to 86400 (a day), not 0",
        ),
        ("servers: {a: {command: c, timeout_seconds: 86401}}", None),
        ("servers: {a: {command: c, timeout_seconds: .nan}}", None),
        ("servers: {a: {command: c, arg: [x]}}", "1: servers.a.arg: unknown key; did you mean args?"),
        ("servers: {a: {command: c, args: x}}", "1: servers.a.args: must be a list"),
        ("servers: {a: {command: c, args: [5]}}", None),
        ('servers: {a: {command: "c\\0"}}', None),
        (
            f"servers: {{a: {{command: c, args: [{'x,' * 257}]}}}}",
            "1: servers.a.args: must be a list of at most 256 strings",
        ),
        (
            "servers: {a: {url: 'http://a', headers: {'a b': c}}}",
            "1: servers.a.headers.a…: must be an HTTP header's name, not a…",
        ),
        (
            "servers: {" + "".join(f"s{n}: {{command: c}}, " for n in range(65)) + "}",
            "1: servers: must be at most 64 servers",
        ),
        ("packs: demo.py", "1: packs: must be a list"),
        ("packs: ['']", '1: packs[0]: must be a file or a glob, such as packs/*.py, not ""'),
        ('packs: ["a\\0"]', None),
        (f"packs: [{'a,' * 101}]", "1: packs: must be at most 100 files or globs"),
        ("topics: {}", "1: topics: must be a list"),
        ("topics:\n  - {pattern: a}", "2: topics[0]: needs the key file"),
        ("topics:\n  - {pattern: '', file: b}", None),
        ("topics: [{pattern: a, file: ../b}]", "1: topics[0].file: holds '..'"),
        ("topics: [{pattern: a, file: b/../../c}]", "1: topics[0].file: holds '..'"),
        ("topics: [{pattern: a, file: /etc/passwd}]", "1: topics[0].file: is an absolute path"),
        ('topics: [{pattern: a, file: "b\\0"}]', "1: topics[0].file: holds a NUL"),
        ("topics: [{pattern: a, file: .}]", None),
        ("topics: [{pattern: a, file: b/}]", None),
        ("topics: [{pattern: a, file: ''}]", None),
        ("prompts: [a]", "1: prompts: must be a file's name, not a list"),
        ("prompts:", "1: prompts: must be a file's name, not nothing"),
        ("snippets: {a: {}}", "1: snippets.a: needs the key body"),
        ("snippets: {a: {body: ''}}", '1: snippets.a.body: must be a template of 1 to 65536 characters, not ""'),
        ("snippets: {a/b: {body: x}}", None),
        ("snippets: {a: {body: x, description: 5}}", None),
        ("snippets: {a: {body: x, params: {b-c: {}}}}", None),
        ("snippets: {a: {body: x, params: {if: {}}}}", None),
        (
            "snippets: {a: {body: x, params: {b: {type: int}}}}",
            "1: snippets.a.params.b.type: unknown key; here may stand default, description or example",
        ),
        (
            "snippets: {a: {body: x, params: {b: {default: [1]}}}}",
            f"1: snippets.a.params.b.default: must be {SCALAR}, not a list",
        ),
        ("snippets: {a: {body: x, params: {b: {default: 2020-01-01}}}}", None),
        (
            "snippets:\n  a:\n    body: |\n      x\n      {{ y }",
            "3: snippets.a.body: is no Jinja2 template: unexpected '}' (line 2 of it)",
        ),
        ("snippets: {a: {body: '{% for %}'}}", None),
        (
            "snippets: {a: {body: '{{ b | nothing }}', params: {b: {}}}}",
            "1: snippets.a.body: is no Jinja2 template: No filter named 'nothing'. (line 1 of it)",
        ),
        (
            "snippets: {a: {body: '{% include \"b\" %}'}}",
            "1: snippets.a.body: refers to another template: a snippet stands by itself",
        ),
        (
            "snippets: {a: {body: '{{ b }} {{ c }}', params: {b: {}, d: {}}}}",
            "1: snippets.a.body: uses c, which is no parameter: declared are b, d",
        ),
        ("snippets: {a: {body: '{{ b }}'}}", "1: snippets.a.body: uses b, which is no parameter: none is declared"),
    ],
)
def test_an_impossible_value_names_file_line_and_key(text: str, expected: str | None) -> None:
    said = refusal(text, {"demo.py": DEMO})
    assert said.startswith(f"oubliette.yaml:{expected or ''}")
    assert expected is None or said == f"oubliette.yaml:{expected}"


# "A configuration with duplicate or shadowing names …: refused at load or reload, naming both places".
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("servers: {session: {command: c}}", f"1: servers.session: is called session, {OWN}"),
        ("servers: {ot: {command: c}}", f"1: servers.ot: is called ot, {OWN}"),
        ("servers: {oubliette: {command: c}}", f"1: servers.oubliette: is called oubliette, {OWN}"),
        ("servers: {oubliette_x: {command: c}}", None),
        (
            "servers:\n  demo: {command: c}\npacks: [demo.py]",
            "2: servers.demo: is called as a local pack is (demo.py:2)",
        ),
        ("aliases:\n  a: a", "2: aliases.a: is an alias of itself: it stands for a tool, pack.tool"),
        (
            "aliases:\n  a: b\n  b: session.list",
            "2: aliases.a: is an alias of another alias (oubliette.yaml:3: aliases.b): it stands for a tool",
        ),
        ("aliases:\n  a: gone.tool", None),
        ("aliases:\n  a: session.gone", "2: aliases.a: the daemon has no tool session.gone"),
        ("packs: [demo.py]\naliases:\n  a: demo.baz", "3: aliases.a: the pack demo has no tool baz (demo.py:2)"),
        ("aliases:\n  session: ot.tools", f"2: aliases.session: is called session, {OWN}"),
        ("aliases:\n  ot_tools: ot.tools", f"2: aliases.ot_tools: is called ot_tools, {OWN}"),
        ("aliases:\n  oubliette_x: ot.tools", None),
        (
            "servers:\n  a: {command: c}\naliases:\n  a: ot.tools",
            "4: aliases.a: is called as a server is (oubliette.yaml:2: servers.a)",
        ),
        ("packs: [demo.py]\naliases:\n  demo: ot.tools", "3: aliases.demo: is called as a local pack is (demo.py:2)"),
        (
            "packs: [demo.py]\naliases:\n  demo_foo: ot.tools",
            "3: aliases.demo_foo: is called as the tool demo.foo is for agents (demo.py:5)",
        ),
        (f"servers:\n  a: {{command: c}}\naliases:\n  b: a.{'x' * 63}", None),
    ],
)
def test_names_that_cannot_stand_side_by_side_are_refused(text: str, expected: str | None) -> None:
    said = refusal(text, {"demo.py": DEMO})
    assert said.startswith("oubliette.yaml:")
    assert expected is None or said == f"oubliette.yaml:{expected}"


def test_an_alias_of_nothing_says_what_there_is() -> None:
    said = refusal("aliases: {a: gone.tool}\npacks: [demo.py]\nservers: {github: {command: c}}", {"demo.py": DEMO})
    packs = "caller_tool, demo, github, ot, project, session, token, workspace"
    assert said == f"oubliette.yaml:1: aliases.a: there is no pack gone; there are {packs}"


@pytest.mark.parametrize("name", ["project", "caller_tool", "oubliette", "oubliette_project"])
def test_a_local_pack_is_not_called_as_the_daemon_is(name: str) -> None:
    said = refusal("packs: [demo.py]", {"demo.py": DEMO.replace("demo", name)})
    assert said == f"oubliette.yaml:1: packs: demo.py:2 is the pack {name}, which is a name of the daemon's own"


def test_two_tools_with_one_mcp_name_are_refused() -> None:
    files = {
        "a.py": 'pack = "a"\n__all__ = ["b_c"]\ndef b_c() -> None: ...\n',
        "b.py": 'pack = "a_b"\n__all__ = ["c"]\ndef c() -> None: ...\n',
    }
    said = refusal("log: {}\npacks: ['*.py']", files)
    assert said == "oubliette.yaml:2: packs: a.b_c (a.py:3) and a_b.c (b.py:3) would both be called a_b_c"


def test_a_tool_does_not_take_the_mcp_name_of_the_daemons() -> None:
    files = {"a.py": 'pack = "caller"\n__all__ = ["tool_response"]\ndef tool_response() -> None: ...\n'}
    said = refusal("packs: ['a.py']", files)
    assert said.startswith(
        "oubliette.yaml:1: packs: caller.tool_response (a.py:3) would be called caller_tool_response"
    )


def test_the_names_of_the_daemon_are_those_that_it_has() -> None:
    from oubliette.protocol.names import mcp_name as name_of_tool
    from oubliette.toolbox import box

    assert {names.mcp_name(tool) for tool in names.DAEMON_TOOLS} == set(box.TOOLS)
    assert names.DAEMON_PACKS == box.PACKS
    assert names.mcp_name("a.b.c") == name_of_tool("a", "b.c")


# --- what is broken and does not stop the rest -------------------------------------------------------------------


def test_an_alias_of_a_broken_pack_is_a_problem_and_no_end() -> None:
    files = {"demo.py": DEMO, "bad.py": "pack = 'bad'\n__all__ = ['x']\nraise OSError('no disk')\n"}
    loaded = load("packs: ['*.py']\naliases: {b: bad.x, f: demo.foo}", files)
    assert loaded.problems["bad.py"] == "bad.py:3: raises OSError: no disk"
    assert loaded.problems["alias b"].startswith("oubliette.yaml:2: aliases.b: there is no pack bad; ")
    assert (list(loaded.problems), list(loaded.local)) == (["bad.py", "alias b"], ["demo"])
    assert loaded.aliases == {"b": "bad.x", "f": "demo.foo"}


def test_a_broken_pack_excuses_no_other_mistake() -> None:
    files = {"demo.py": DEMO, "bad.py": "("}
    assert "has no tool baz" in refusal("packs: ['*.py']\naliases: {b: demo.baz}", files)
    assert "has no tool ot.baz" in refusal("packs: ['*.py']\naliases: {b: ot.baz}", files)


# --- prompts.yaml ------------------------------------------------------------------------------------------------

ANCHORS = "anchors and aliases (& and *) are not allowed: write the value out"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("packs:\n  demo: 5", "prompts.yaml:2: packs.demo: must be a text of at most 16384 characters, not 5"),
        (
            "packs:\n  demo: {x: y}",
            "prompts.yaml:2: packs.demo: must be a text of at most 16384 characters, not a mapping",
        ),
        (f"packs:\n  demo: {'a' * 16385}", None),
        ("packs: []", "prompts.yaml:1: packs: must be a mapping of keys to values"),
        ("pack: {}", "prompts.yaml:1: pack: unknown key; did you mean packs?"),
        ("packs: {a b: x}", None),
        ("packs:\n  a: x\n  a: y", "prompts.yaml:3: packs.a: stands twice, first in line 2"),
        ("packs: {a: &x [*x]}", f"prompts.yaml:1: {ANCHORS}"),
        ("packs: {a: !!python/object/apply:os.system [id]}", "prompts.yaml:1: tags (!) are not allowed"),
        ("packs:\n  <<: {a: b}", "prompts.yaml:2: merge keys (<<) are not allowed: write the values out"),
        ("[" * 100_000, "prompts.yaml:1: is nested deeper than 16 levels"),
        ("a" * (1024 * 1024 + 1), "prompts.yaml: is larger than 1048576 bytes"),
    ],
)
def test_the_file_of_instructions_is_read_as_strictly(text: str, expected: str | None) -> None:
    said = refusal("", {"prompts.yaml": text})
    assert said.startswith("prompts.yaml:")
    assert expected is None or said == expected


def test_a_file_of_instructions_that_cannot_be_read_is_refused() -> None:
    Path("prompts.yaml").mkdir()
    assert refusal("") == "prompts.yaml: cannot be read: Is a directory"


@pytest.mark.parametrize("text", ["", "packs:\n"])
def test_an_empty_file_of_instructions_is_none(text: str) -> None:
    assert load("", {"prompts.yaml": text}).instructions == {}


# --- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "server",
    [
        "{command: c, env: canary}",
        "{command: c, env: [canary]}",
        "{command: c, env: {A: [canary]}}",
        "{command: c, env: {A: {B: canary}}}",
        "{command: c, env: {A=canary}}",
        '{command: c, env: {A: "canary\\0"}}',
        "{command: c, env: {A: 'canary ${GONE}'}}",
        "{command: c, env: {A: 'canary ${'}}",
        '{command: c, args: ["canary\\0"]}',
        "{url: 'canary://x'}",
        "{url: 'http://canary@x'}",
        '{url: "http://x", headers: {A: "canary\\n"}}',
        '{url: "http://x", headers: {A: "canary\\u00e9"}}',
        "{url: 'http://x', headers: {A: '${KEY}'}}",
        "{url: 'http://x', headers: {A: '${KEY}${GONE}'}}",
    ],
)
def test_no_refusal_shows_a_secret(server: str) -> None:
    said = refusal(f"servers: {{a: {server}}}", environ={"KEY": "canary\n"})
    assert said.startswith("oubliette.yaml:1: servers.a")
    assert "canary" not in said


def test_a_server_shows_no_secret() -> None:
    server = ServerConfig(command="canary-1", args=("canary-2",), env=Variables({"TOKEN": "canary-3"}))
    assert repr(server) == "<ServerConfig stdio <Variables TOKEN> <Headers >>"
    assert "canary" not in f"{server} {ServerConfig(url='http://canary')!r}"


WORDS = ("a", "ot", "body", "params", "command", "url", "pattern", "file", "default", "env", "args")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["aliases", "snippets", "servers", "packs", "topics", "prompts"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.sampled_from(["a", "a.b", "ot.tools", "{{ a }}", "*", "..", ""]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(WORDS),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=6,
        ),
    )
)
def test_any_values_are_a_configuration_or_a_config_error(values: Any) -> None:
    try:
        answer: PackConfig | str = load(json.dumps(values))
    except ConfigError as error:
        answer = str(error)
    assert isinstance(answer, PackConfig) or answer.startswith("oubliette.yaml:")
