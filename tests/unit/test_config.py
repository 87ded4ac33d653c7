"""The configuration: defaults, where it is looked for, and what each refusal says (WIRE section 9)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from ot_pack.config import Sections as PackSections
from ot_pack.document import ConfigError
from oubliette import config
from oubliette.config import (
    AcpProfile,
    ClaudeProfile,
    CodexProfile,
    CommandProfile,
    Config,
    Environment,
    ExternalProfile,
    OpencodeProfile,
    RuntimeConfig,
)

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "oubliette.yaml"
PROMPTS = REPOSITORY / "examples" / "prompts.yaml"
CONTRACT = REPOSITORY.parent / "shared" / "design" / "oubliette.example.yaml"

SECTIONS = (config.Sections, PackSections)
AGENTS = (ClaudeProfile, CodexProfile, OpencodeProfile, AcpProfile)


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str | bytes, *, environ: Mapping[str, str] | None = None, **overrides: object) -> Config:
    """The configuration in `text`, read from ./oubliette.yaml."""
    Path("oubliette.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.load(None, environ=environ or {}, overrides=overrides)


def refusal(text: str | bytes, **rest: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, **rest)
    return str(caught.value)


# --- defaults and the example ------------------------------------------------------------------------------------


def test_without_a_file_everything_has_its_default() -> None:
    assert config.load(None, environ={}, overrides={}) == Config()
    assert Config().source is None


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing\n", "---\n", "null\n", "\ufeff", "relay:\n  # all commented out\n"]
)
def test_an_empty_file_is_the_defaults(text: str) -> None:
    assert load(text) == Config(source=Path("oubliette.yaml"))


def test_the_built_in_profiles_are_the_packaged_demo_agent_and_external() -> None:
    command = (sys.executable, "-m", "oubliette.demo.agent", "{prompt}")
    assert Config().agents.profiles == {"command": CommandProfile(command=command), "external": ExternalProfile()}


def test_the_example_holds_the_defaults() -> None:
    loaded = config.load(EXAMPLE, environ={}, overrides={})
    # The example shows an agent that its reader can edit; built in is the one that comes with the package.
    shown = CommandProfile(command=("python", "examples/agent.py", "{prompt}"))
    profiles = {**Config().agents.profiles, "command": shown}
    agents = msgspec.structs.replace(Config().agents, profiles=profiles)
    # Beside the example lies a file of instructions, to be read where it exists.
    pack = msgspec.structs.replace(Config().pack, instructions=yaml.safe_load(PROMPTS.read_text())["packs"])
    assert loaded == msgspec.structs.replace(Config(), agents=agents, pack=pack, source=EXAMPLE)


def test_the_example_has_every_key_with_a_comment() -> None:
    keys = {line.split(":")[0].strip(" #") for line in EXAMPLE.read_text().splitlines() if " # " in line}
    assert keys >= {name for section in SECTIONS for name, _ in leaves(section)}
    assert keys >= {name for agent in AGENTS for name in agent.__struct_fields__} - {"env"}


def test_the_comments_of_the_example_are_true() -> None:
    lines = [re.sub(r"^( +)# ", r"\1", line) for line in EXAMPLE.read_text().splitlines()]
    folder = REPOSITORY / "examples" / "packs"
    Path("packs").mkdir()
    Path("packs", "demo.py").write_bytes((folder / "demo.py").read_bytes())
    variables = dict.fromkeys(("ANTHROPIC_API_KEY", "GITHUB_TOKEN", "DOCS_TOKEN"), "canary")
    loaded = load("\n".join(line for line in lines if line.strip() not in ("{}", "[]")), environ=variables)
    profiles = loaded.agents.profiles
    assert profiles["claude"] == ClaudeProfile(env=Environment({"ANTHROPIC_API_KEY": "canary"}))
    assert profiles["codex"] == CodexProfile()
    assert profiles["acp"] == AcpProfile(command=("opencode", "acp"))
    assert loaded.runtime.model_hosts == ("api.anthropic.com:443",)
    assert (list(loaded.pack.servers), list(loaded.pack.local)) == (["github", "docs"], ["demo"])
    assert (loaded.pack.aliases, list(loaded.pack.snippets)) == ({"compare": "demo.diff"}, ["review"])
    assert (len(loaded.pack.topics), loaded.pack.problems) == (1, {})
    assert "canary" not in repr(loaded)


def test_the_example_is_a_part_of_the_contract() -> None:
    if not CONTRACT.exists():
        pytest.skip("the contract's example lies beside the checkout only where the project is developed")
    ours, theirs = (yaml.safe_load(path.read_text()) for path in (EXAMPLE, CONTRACT))
    assert ours["runtime"].pop("mounts") == []  # added to the contract
    assert [path for path in paths(ours) if path not in list(paths(theirs))] == []


def paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document that is no mapping, with where it stands."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from paths(item, f"{path}.{key}")
    else:
        yield path, value


def leaves(struct: type[Struct]) -> Iterator[tuple[str, Any]]:
    """Every key that takes a value, with its type."""
    for info in msgspec.structs.fields(struct):
        if isinstance(info.type, type) and issubclass(info.type, Struct):
            yield from leaves(info.type)
        else:
            yield info.name, info.type


def scalar_types(wanted: Any) -> Iterator[Any]:
    if get_origin(wanted) is Annotated and get_origin(get_args(wanted)[0]) not in (tuple, Mapping):
        yield wanted
    elif get_origin(wanted) is UnionType:
        for struct in get_args(wanted):
            yield from scalar_types(struct)
    elif isinstance(wanted, type) and issubclass(wanted, Struct):
        yield from (inner for _, leaf in leaves(wanted) for inner in scalar_types(leaf))
    elif get_origin(wanted) is Annotated:  # a list or a mapping with a bound
        yield from (wanted, *scalar_types(get_args(wanted)[0]))
    else:
        for inner in get_args(wanted):
            yield from scalar_types(inner)


def test_every_type_says_in_words_what_it_takes() -> None:
    types = [found for section in SECTIONS for _, leaf in leaves(section) for found in scalar_types(leaf)]
    assert len(types) > 50
    assert [
        wanted for wanted in types if not any(isinstance(m, Meta) and m.description for m in wanted.__metadata__)
    ] == []


def test_every_section_explains_its_keys() -> None:
    for section in msgspec.structs.fields(config.Sections):
        if section.name != "project_packs":
            for key in msgspec.structs.fields(section.type):
                assert f"`{key.name}`" in (section.type.__doc__ or ""), f"{section.name}.{key.name}"
    for name in PackSections.__struct_fields__:
        assert f"`{name}`" in (PackSections.__doc__ or "")
    assert "`project_packs`" in (config.Sections.__doc__ or "")


# --- where it is looked for --------------------------------------------------------------------------------------


def places(tmp_path: Path) -> dict[str, Path]:
    return {
        "option": tmp_path / "option.yaml",
        "environment": tmp_path / "environment.yaml",
        "here": tmp_path / "oubliette.yaml",
        "xdg": tmp_path / "xdg" / "oubliette" / "oubliette.yaml",
        "home": tmp_path / "home" / ".config" / "oubliette" / "oubliette.yaml",
    }


@pytest.mark.parametrize(
    ("given_option", "environ", "found"),
    [
        (True, {"OUBLIETTE_CONFIG": "environment.yaml"}, "option"),
        (False, {"OUBLIETTE_CONFIG": "environment.yaml"}, "environment"),
        (False, {"OUBLIETTE_CONFIG": ""}, "here"),
        (False, {"XDG_CONFIG_HOME": "xdg", "HOME": "home"}, "here"),
    ],
)
def test_the_order_of_the_search(tmp_path: Path, given_option: bool, environ: dict[str, str], found: str) -> None:
    for port, place in enumerate(places(tmp_path).values(), start=1):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"server: {{port: {port}}}")
    path = tmp_path / "option.yaml" if given_option else None
    loaded = config.load(path, environ=environ, overrides={})
    assert list(places(tmp_path))[loaded.server.port - 1] == found


@pytest.mark.parametrize(
    ("variables", "found"),
    [(("XDG_CONFIG_HOME", "HOME"), "xdg"), (("HOME",), "home"), ((), None)],
)
def test_the_users_directory_comes_last(tmp_path: Path, variables: tuple[str, ...], found: str | None) -> None:
    for name in ("xdg", "home"):
        places(tmp_path)[name].parent.mkdir(parents=True)
        places(tmp_path)[name].touch()
    directories = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    loaded = config.load(None, environ={name: directories[name] for name in variables}, overrides={})
    assert loaded.source == (places(tmp_path)[found] if found else None)


def test_a_relative_xdg_directory_is_ignored(tmp_path: Path) -> None:
    places(tmp_path)["xdg"].parent.mkdir(parents=True)
    places(tmp_path)["xdg"].touch()
    assert config.load(None, environ={"XDG_CONFIG_HOME": "xdg"}, overrides={}).source is None


@pytest.mark.parametrize(
    ("path", "environ"), [(Path("gone.yaml"), {}), (None, {"OUBLIETTE_CONFIG": "gone.yaml"}), (Path("gone.yaml/x"), {})]
)
def test_a_file_that_was_asked_for_must_exist(path: Path | None, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^gone\.yaml(/x)?: cannot be read: No such file or directory$"):
        config.load(path, environ=environ, overrides={})


def test_a_file_that_exists_must_be_readable() -> None:
    Path("oubliette.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"^oubliette\.yaml: cannot be read: Is a directory$"):
        config.load(None, environ={}, overrides={})


# --- the command line --------------------------------------------------------------------------------------------


def test_options_go_over_the_file() -> None:
    loaded = load("server: {host: 127.0.0.1, port: 1, shutdown_grace_seconds: 2}", host="::1", port=0)
    assert (loaded.server.host, loaded.server.port, loaded.server.shutdown_grace_seconds) == ("::1", 0, 2)


def test_an_option_that_was_not_given_changes_nothing() -> None:
    assert load("server: {port: 1}", host=None, port=None).server.port == 1


def test_options_need_no_file() -> None:
    loaded = config.load(None, environ={}, overrides={"port": 9})
    assert (loaded.server.port, loaded.source) == (9, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"port": 70000}, "--port: must be a whole number from 0 to 65535, not 70000"),
        ({"port": "http"}, '--port: must be a whole number from 0 to 65535, not "http"'),
        ({"host": "a b"}, "--host: must be an IP address or a host name, without port and brackets"),
    ],
)
def test_a_bad_option_is_named(overrides: dict[str, object], message: str) -> None:
    assert refusal("server: {port: 1, host: localhost}", **overrides) == message


# --- refusals ----------------------------------------------------------------------------------------------------

SECONDS = "a number of seconds from 0 to 1e9"
TIMEOUT = "a number of seconds greater than 0, at most 1e9"
COUNT = "a whole number from 1 to 1000000000"
HOST = "must be an IP address or a host name, without port and brackets"
MEMORY = "an amount of memory from 16m to 1024g: a number of bytes, or with the suffix k, m or g"
HEADER = "a host as a Host header has it: example.com, example.com:80, [::1]"


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("server", "port", "65536", "must be a whole number from 0 to 65535, not 65536"),
        ("server", "port", "-1", "must be a whole number from 0 to 65535, not -1"),
        ("server", "port", "80.5", "must be a whole number from 0 to 65535, not 80.5"),
        ("server", "port", '"80"', 'must be a whole number from 0 to 65535, not "80"'),
        ("server", "port", "true", "must be a whole number from 0 to 65535, not true"),
        ("server", "port", "", "must be a whole number from 0 to 65535, not nothing"),
        ("server", "port", "[80]", "must be a whole number from 0 to 65535, not a list"),
        ("server", "host", "5", "must be an IP address or a host name, without port and brackets, not 5"),
        ("server", "host", '""', HOST),
        ("server", "host", '"[::1]"', HOST),
        ("server", "host", "localhost:80", HOST),
        ("server", "host", "http://localhost", HOST),
        ("server", "host", "256.1.1.1", HOST),
        ("server", "host", "1::2::3", HOST),
        ("server", "allowed_hosts", "example.com", "must be a list"),
        ("server", "allowed_hosts[0]", "['*']", f'must be {HEADER}, not "*"'),
        ("server", "allowed_hosts[1]", "[a, 'https://b']", f'must be {HEADER}, not "https://b"'),
        ("server", "allowed_hosts[0]", "['a\\n']", None),
        ("server", "allowed_hosts[0]", '["a\\n"]', f'must be {HEADER}, not "a\\n"'),
        ("server", "allowed_origins[0]", "['null']", 'must be an origin, such as https://example.com:8443, not "null"'),
        ("server", "allowed_origins[0]", "[a.com]", 'must be an origin, such as https://example.com:8443, not "a.com"'),
        ("server", "allowed_origins[0]", "['http://a/']", None),
        ("server", "shutdown_grace_seconds", "-1", f"must be {SECONDS}, not -1"),
        ("relay", "timeout_seconds", "sixty", f'must be {TIMEOUT}, not "sixty"'),
        ("relay", "timeout_seconds", "0", f"must be {TIMEOUT}, not 0"),
        ("relay", "timeout_seconds", "-1", f"must be {TIMEOUT}, not -1"),
        ("relay", "timeout_seconds", ".nan", f"must be {TIMEOUT}, not .nan"),
        ("relay", "timeout_seconds", ".inf", f"must be {TIMEOUT}, not .inf"),
        ("relay", "timeout_seconds", "yes", f"must be {TIMEOUT}, not yes"),
        ("relay", "timeout_seconds", "1" + "0" * 99, f"must be {TIMEOUT}, not 1{'0' * 39}…"),
        ("relay", "timeout_seconds", "7200", "timeout_seconds (7200) is more than max_timeout_seconds (3600)"),
        ("relay", "max_timeout_seconds", "30", "timeout_seconds (60) is more than max_timeout_seconds (30)"),
        ("relay", "max_timeout_seconds", "0", "must be a number of seconds from 0.1 to 1e9, not 0"),
        ("relay", "attach_grace_seconds", "-0.5", f"must be {SECONDS}, not -0.5"),
        ("relay", "disconnect_grace_seconds", ".inf", f"must be {SECONDS}, not .inf"),
        ("relay", "poll_grace_seconds", "null", f"must be {SECONDS}, not nothing"),
        ("relay", "max_pending", "0", f"must be {COUNT}, not 0"),
        ("relay", "max_message_bytes", "65535", "must be a number of bytes from 65536 to 1073741824, not 65535"),
        ("relay", "max_message_bytes", "4 MiB", 'must be a number of bytes from 65536 to 1073741824, not "4 MiB"'),
        ("sessions", "max_active_per_project", "0", f"must be {COUNT}, not 0"),
        ("sessions", "event_buffer", "0", f"must be {COUNT}, not 0"),
        ("sessions", "event_buffer_bytes", "1023", "must be a number of bytes from 1024 to 1099511627776, not 1023"),
        ("sessions", "idle_timeout_seconds", "-1", f"must be {SECONDS}, not -1"),
        ("sessions", "max_depth", "33", "must be a whole number from 0 (no children) to 32, not 33"),
        ("sessions", "max_depth", "-1", "must be a whole number from 0 (no children) to 32, not -1"),
        ("sessions", "max_children", "10001", "must be a whole number from 0 (no children) to 10000, not 10001"),
        ("runtime", "kind", "podman", "podman needs an image: set runtime.image"),
        ("runtime", "kind", "docker", "docker needs an image: set runtime.image"),
        ("runtime", "kind", "vm", 'must be auto, process, bubblewrap, podman or docker, not "vm"'),
        ("runtime", "image", "--privileged", 'must be an image\'s name, such as localhost/agent:1, not "--privileged"'),
        ("runtime", "image", '"a b"', None),
        ("runtime", "network", "on", "must be none, model or host, not on"),
        ("runtime", "network", "all", 'must be none, model or host, not "all"'),
        (
            "runtime",
            "model_hosts[0]",
            "[example.com]",
            'must be HOST:PORT, such as api.example.com:443, not "example.com"',
        ),
        ("runtime", "model_hosts[1]", "[a:1, 'a:65536']", None),
        ("runtime", "model_hosts[0]", "['a:0']", None),
        ("runtime", "model_hosts[0]", "['a:080']", None),
        ("runtime", "model_hosts[0]", "['https://a:80']", None),
        ("runtime", "model_hosts[0]", "['*:443']", None),
        ("runtime", "model_hosts[0]", '["a:80\\n"]', None),
        ("runtime", "memory", "2t", f"must be {MEMORY}"),
        ("runtime", "memory", "1m", f"must be {MEMORY}"),
        ("runtime", "memory", "2000g", f"must be {MEMORY}"),
        ("runtime", "memory", "0", f"must be {MEMORY}"),
        ("runtime", "memory", "-1", f"must be {MEMORY}"),
        ("runtime", "memory", "1.5g", f"must be {MEMORY}"),
        ("runtime", "memory", "yes", f"must be {MEMORY}, not yes"),
        ("runtime", "memory", "1" + "0" * 40, f"must be {MEMORY}"),
        ("runtime", "cpus", "0", "must be a number of processors greater than 0, at most 4096, not 0"),
        ("runtime", "cpus", ".nan", None),
        ("runtime", "pids", "7", "must be a whole number from 8 to 4194304, not 7"),
        ("runtime", "extra_args[0]", "[5]", None),
        ("runtime", "mounts[0]", "[opt]", "must be an absolute path without '..', ':' and ',', not \"opt\""),
        ("runtime", "mounts[0]", "[/]", None),
        ("runtime", "mounts[0]", "[/opt/../etc]", None),
        ("runtime", "mounts[0]", "['/opt/a:b']", None),
        ("runtime", "mounts[0]", "['/opt/a,b']", None),
        ("runtime", "mounts[0]", "[/opt/]", None),
        ("runtime", "mounts[0]", '["/opt\\0"]', None),
        ("runtime", "imag", "x", "unknown key; did you mean image?"),
        ("agents", "default", "nobody", "no profile is called nobody; there is command or external"),
        ("agents", "profiles", "{}", "no profile is called command; there is none"),
        ("agents", "profiles", "[]", "must be a mapping of keys to values"),
        ("log", "level", "loud", 'must be debug, info, warning or error, not "loud"'),
        ("log", "level", "off", "must be debug, info, warning or error, not off"),
        ("log", "format", "xml", 'must be auto, console or json, not "xml"'),
    ],
)
def test_an_impossible_value_names_file_line_and_key(section: str, key: str, value: str, expected: str | None) -> None:
    message = refusal(f"# a comment\n{section}:\n  {key.partition('[')[0]}: {value}\n")
    where = f"oubliette.yaml:3: {section}.{key}: "
    assert message.startswith(where)
    assert expected is None or message == where + expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "relay:\n  timeout_second: 1",
            "oubliette.yaml:2: relay.timeout_second: unknown key; did you mean timeout_seconds?",
        ),
        ("realy:\n  x: 1", "oubliette.yaml:1: realy: unknown key; did you mean relay?"),
        ("log: {x: 1}", "oubliette.yaml:1: log.x: unknown key; here may stand format or level"),
        ("serves: {}", "oubliette.yaml:1: serves: unknown key; did you mean servers?"),
        ("project_packs: ot", "oubliette.yaml:1: project_packs: must be a list"),
        (
            "project_packs: [ot, a b]",
            "oubliette.yaml:1: project_packs[1]: must be a pack's name: 1 to 64 letters, digits, '_' and '-', "
            'not "a b"',
        ),
        (f"project_packs: [{'a,' * 65}]", "oubliette.yaml:1: project_packs: must be at most 64 packs"),
        ("project_packs: [ot, ot]", "oubliette.yaml:1: project_packs: names a pack twice"),
        (
            "log: {}\nserver:\n  port: 1\n  host: a\n  port: 2",
            "oubliette.yaml:5: server.port: stands twice, first in line 3",
        ),
        ("log: {}\nlog: {}", "oubliette.yaml:2: log: stands twice, first in line 1"),
        ('log: {level: info, "level": info}', "oubliette.yaml:1: log.level: stands twice, first in line 1"),
        ("relay: 5", "oubliette.yaml:1: relay: must be a mapping of keys to values"),
        ("- relay", "oubliette.yaml:1: must be a mapping of keys to values"),
        ("relay", "oubliette.yaml:1: must be a mapping of keys to values"),
        ("1: x", "oubliette.yaml:1: a key must be a string (in quotes where YAML reads something else)"),
        ("log:\n  on: x", "oubliette.yaml:2: a key must be a string (in quotes where YAML reads something else)"),
        ("? [a]\n: x", "oubliette.yaml:1: a key must be a string (in quotes where YAML reads something else)"),
        ("log: {level: 2001-13-01}", "oubliette.yaml:1: log.level: cannot be read: in quotes it is a string"),
        ("2001-13-01", "oubliette.yaml:1: cannot be read: in quotes it is a string"),
        (f"server: {{port: {'9' * 5000}}}", "oubliette.yaml:1: server.port: cannot be read: in quotes it is a string"),
        (
            "a: 1\n---\nb: 2",
            "oubliette.yaml:2: is not YAML: expected a single document in the stream but found another document",
        ),
        (
            "log:\n  level: 'x\n",
            "oubliette.yaml:3: is not YAML: while scanning a quoted scalar found unexpected end of stream",
        ),
        ("log:\n  level: \x07", "oubliette.yaml:2: is not YAML: control characters are not allowed"),
        ('log: {level: "\\ud800"}', None),
        (b"log:\n  # \xff\n", "oubliette.yaml:2: is not UTF-8"),
        ("log: {}".encode("utf-16"), "oubliette.yaml:1: is not UTF-8"),
    ],
)
def test_a_malformed_file_names_the_line(text: str | bytes, message: str | None) -> None:
    said = refusal(text)
    assert said == message if message else said.startswith("oubliette.yaml:1: ")


# HAZARDS T35: "alias bomb, `!!python/object`, merge keys": "safe loader, alias and output caps".
BOMB = "a: &a [x,x]\n" + "\n".join(f"{n}: &{n} [*{p},*{p}]" for p, n in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "oubliette.yaml:1: anchors and aliases (& and *) are not allowed: write the value out"),
        ("log: {level: *x}", "oubliette.yaml:1: anchors and aliases (& and *) are not allowed: write the value out"),
        (
            "log: &log {level: [*log]}",
            "oubliette.yaml:1: anchors and aliases (& and *) are not allowed: write the value out",
        ),
        ("log:\n  level: !!python/object/apply:os.system [id]", "oubliette.yaml:2: tags (!) are not allowed"),
        ("!!python/name:os.system", "oubliette.yaml:1: tags (!) are not allowed"),
        ("log: {level: !!str info}", "oubliette.yaml:1: tags (!) are not allowed"),
        ("log: {level: ! info}", "oubliette.yaml:1: tags (!) are not allowed"),
        ("log:\n  <<: {level: info}", "oubliette.yaml:2: merge keys (<<) are not allowed: write the values out"),
        ("[" * 500_000, "oubliette.yaml:1: is nested deeper than 16 levels"),
        ("- " * 500_000, "oubliette.yaml:1: is nested deeper than 16 levels"),
        (
            "log: {level: " + "1:" * 500_000 + "1}",
            "oubliette.yaml:1: log.level: cannot be read: in quotes it is a string",
        ),
        ("server: {allowed_hosts: [" + "a," * 60_000 + "]}", "oubliette.yaml:1: holds more than 50000 keys and values"),
        ("a" * (1024 * 1024 + 1), "oubliette.yaml: is larger than 1048576 bytes"),
    ],
)
def test_what_only_an_attacker_needs_is_refused(text: str, message: str) -> None:
    assert refusal(text) == message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="relaysvtimout_cd:{}[]-,&*!<>|'\"%?#\n\t .0159~$", max_size=80).map(str.encode),
    )
)
@example(b"a: 0x_")
@example(b"a: 0001-01-01T00:00:00+23:00")
@example(b"a: " + b"1:" * 200 + b"0.5")
@example(b"agents: {profiles: {command: {type: []}}}")
def test_any_bytes_are_a_configuration_or_a_config_error(data: bytes) -> None:
    try:
        answer: Config | str = load(data)
    except ConfigError as error:
        answer = str(error)
    assert isinstance(answer, Config) or answer.startswith("oubliette.yaml:")


def test_a_struct_that_is_impossible_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="is more than"):
        config.RelayConfig(timeout_seconds=2, max_timeout_seconds=1)


# --- profiles and their secrets ----------------------------------------------------------------------------------


TYPES = "command, external, claude, codex, opencode or acp"


def profile(text: str) -> str:
    return f"agents:\n  default: x\n  profiles:\n    x:\n      {text}\n"


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("type: cloud", "5: agents.profiles.x.type", f'must be {TYPES}, not "cloud"'),
        ("type: [command]", "5: agents.profiles.x.type", f"must be {TYPES}, not a list"),
        ("command: [a]", "4: agents.profiles.x", f"needs the key type: {TYPES}"),
        ("type: acp", "4: agents.profiles.x", "needs the key command"),
        ("{type: claude, command: []}", "5: agents.profiles.x.command", "must be a list with the program first"),
        ("{type: codex, command: ['']}", "5: agents.profiles.x.command", "must begin with the program to run"),
        ("{type: claude, base_url: 'http://a'}", "5: agents.profiles.x.base_url", None),
        (
            "{type: claude, permissions: root}",
            "5: agents.profiles.x.permissions",
            'must be sandbox, all or tools, not "root"',
        ),
        (
            "{type: claude, model: --x}",
            "5: agents.profiles.x.model",
            'must be a model\'s name, without spaces, not "--x"',
        ),
        (
            "{type: codex, base_url: 'ftp://a'}",
            "5: agents.profiles.x.base_url",
            'must be an http or https URL with a host, such as https://x.com/v1, not "ftp://a"',
        ),
        ("{type: opencode, base_url: 'http://'}", "5: agents.profiles.x.base_url", None),
        ("{type: opencode, base_url: 'http://a:99999'}", "5: agents.profiles.x.base_url", None),
        (
            "{type: opencode, api_key_env: A-B}",
            "5: agents.profiles.x.api_key_env",
            'must be a variable\'s name: letters, digits and _, not "A-B"',
        ),
        ("type: command", "4: agents.profiles.x", "needs the key command"),
        ("type: external\n      command: [a]", "6: agents.profiles.x.command", None),
        ("{type: command, command: []}", "5: agents.profiles.x.command", None),
        ("{type: command, command: ['']}", "5: agents.profiles.x.command", "must begin with the program to run"),
        ("{type: command, command: run me}", "5: agents.profiles.x.command", "must be a list"),
        (
            "{type: command, command: [sleep, 5]}",
            "5: agents.profiles.x.command[1]",
            "must be a string without NUL (in quotes where YAML reads something else), not 5",
        ),
        ('{type: command, command: ["a\\0"]}', "5: agents.profiles.x.command[0]", None),
        ("{type: command, command: [a], env: {A: 5}}", "5: agents.profiles.x.env.A", None),
        ('{type: command, command: [a], env: {A: "b\\0"}}', "5: agents.profiles.x.env.A", None),
        ("{type: command, command: [a], env: {1A: b}}", "5: agents.profiles.x.env.1A", None),
        (
            "{type: command, command: [a], env: {OUBLIETTE_SOCKET: b}}",
            "5: agents.profiles.x.env.OUBLIETTE_SOCKET",
            None,
        ),
        (
            "{type: command, command: [a], env: {A: '${GONE}'}}",
            "5: agents.profiles.x.env.A",
            "${GONE} is not set in the daemon's environment",
        ),
        ("{type: command, command: [a], env: {A: '${B:-c}'}}", "5: agents.profiles.x.env.A", None),
        ("{type: command, command: [a], env: {A: '${B'}}", "5: agents.profiles.x.env.A", None),
    ],
)
def test_a_bad_profile_is_refused(text: str, where: str, message: str | None) -> None:
    line, key = where.split(": ")
    if text.startswith("{"):  # on the line of the profile's name
        line, text = "4", profile(text).replace("x:\n      ", "x: ")
    else:
        text = profile(text)
    said = refusal(text)
    assert said.startswith(f"oubliette.yaml:{line}: {key}: ")
    assert message is None or said.endswith(f": {message}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{type: claude}", ClaudeProfile(command=("claude",))),
        ("{type: codex}", CodexProfile(command=("codex",))),
        ("{type: opencode}", OpencodeProfile(command=("opencode",))),
        ("{type: acp, command: [opencode, acp]}", AcpProfile(command=("opencode", "acp"))),
        (
            "{type: codex, command: [/opt/codex, -v], env: {A: b}, model: o/gpt-5, permissions: all,"
            " base_url: 'http://127.0.0.1:9/v1', api_key_env: KEY}",
            CodexProfile(
                command=("/opt/codex", "-v"),
                env=Environment({"A": "b"}),
                model="o/gpt-5",
                permissions="all",
                base_url="http://127.0.0.1:9/v1",
                api_key_env="KEY",
            ),
        ),
    ],
)
def test_an_agents_profile_needs_little(text: str, expected: config.Profile) -> None:
    found = load(f"agents: {{default: x, profiles: {{x: {text}}}}}").agents.profiles["x"]
    assert found == expected
    assert type(found) is type(expected)


def test_a_runtime_in_full() -> None:
    text = """
runtime:
  kind: podman
  image: localhost/agent:1
  network: none
  model_hosts: ["api.example.com:443", "127.0.0.1:9", "[::1]:80", "localhost:65535"]
  memory: 536870912
  cpus: 0.5
  pids: 64
  extra_args: [--runtime, runc]
  mounts: [/opt/node, /usr/local/lib/a b]
"""
    assert load(text).runtime == RuntimeConfig(
        kind="podman",
        image="localhost/agent:1",
        network="none",
        model_hosts=("api.example.com:443", "127.0.0.1:9", "[::1]:80", "localhost:65535"),
        memory=536870912,
        cpus=0.5,
        pids=64,
        extra_args=("--runtime", "runc"),
        mounts=("/opt/node", "/usr/local/lib/a b"),
    )


@pytest.mark.parametrize(
    ("memory", "count"),
    [("2g", 2 * 2**30), ("512M", 2**29), ("65536k", 2**26), ("16777216", 2**24), (16777216, 2**24), ("1024g", 2**40)],
)
def test_memory_is_a_number_of_bytes(memory: str | int, count: int) -> None:
    assert RuntimeConfig(memory=memory).memory_bytes == count


@pytest.mark.parametrize("name", ["-x", "", "a b", "a/b", "a" * 65])
def test_a_profiles_name_is_a_plain_word(name: str) -> None:
    assert "must be a name of letters" in refusal(
        f'agents: {{profiles: {{command: {{type: external}}, "{name}": {{type: external}}}}}}'
    )


def test_profiles_of_the_file_take_the_place_of_the_built_in_ones() -> None:
    agents = load(profile("type: external")).agents
    assert (agents.default, agents.profiles) == ("x", {"x": ExternalProfile()})


def test_env_takes_values_from_the_daemons_environment() -> None:
    text = profile(
        "type: command\n      command: [a, '${KEY}']\n      env: {A: 'Bearer ${KEY}-${EMPTY}$HOME', B: plain}"
    )
    found = load(text, environ={"KEY": "${NOT_AGAIN}", "EMPTY": ""}).agents.profiles["x"]
    assert isinstance(found, CommandProfile)
    assert dict(found.env) == {"A": "Bearer ${NOT_AGAIN}-$HOME", "B": "plain"}
    assert found.command == ("a", "${KEY}")


def test_the_values_of_env_are_in_no_repr() -> None:
    text = profile("type: command\n      command: [a]\n      env: {A: canary-1, B: '${KEY}'}")
    loaded = load(text, environ={"KEY": "canary-2"})
    assert "<Environment A B>" in repr(loaded)
    assert "canary" not in repr(loaded) + str(loaded) + f"{loaded.agents.profiles}"
    with pytest.raises(TypeError):  # nor is it written by accident
        msgspec.json.encode(loaded.agents)


@pytest.mark.parametrize(
    "env",
    [
        "canary",
        "[canary]",
        "{A=canary}",
        "{A: [canary]}",
        "{A: {B: canary}}",
        "{A: 'canary ${GONE}'}",
        "{A: '${canary'}",
        "{A: '${canary!}'}",
        '{A: "canary\\0"}',
        "{A: canary, A: canary}",
        "{A: !x canary}",
        "{A: &canary x}",
        "{A: 'canary}",
        '{A: "canary\\q"}',
    ],
)
def test_no_refusal_shows_a_secret(env: str) -> None:
    said = refusal(profile(f"type: command\n      command: [a]\n      env: {env}"))
    assert said.startswith("oubliette.yaml:")
    assert "canary" not in said


def test_an_unset_variable_does_not_show_the_others() -> None:
    said = refusal(profile("{type: command, command: [a], env: {A: '${KEY}${GONE}'}}"), environ={"KEY": "canary"})
    assert "${GONE} is not set" in said
    assert "canary" not in said


def test_environment_is_a_mapping_for_a_process() -> None:
    environment = Environment({"A": "1"})
    assert {**os.environ, **environment}["A"] == "1"
    assert environment == {"A": "1"}


# --- the ot pack's part, and reading it again --------------------------------------------------------------------

PACK = 'pack = "demo"\n__all__ = ["one"]\ndef one() -> None: ...\n'


def test_the_keys_of_the_ot_pack_come_from_the_same_file() -> None:
    Path("demo.py").write_text(PACK)
    loaded = load("packs: [demo.py]\nproject_packs: [ot, demo, later]\naliases: {uno: demo.one}\nlog: {level: debug}\n")
    assert (list(loaded.pack.local), loaded.pack.aliases, loaded.log.level) == (["demo"], {"uno": "demo.one"}, "debug")
    assert loaded.project_packs == ("ot", "demo", "later")


def test_a_broken_pack_does_not_refuse_the_start() -> None:
    Path("demo.py").write_text("pack = \n")
    loaded = load("packs: [demo.py]\nproject_packs: [ot, demo]\naliases: {uno: demo.one}\n")
    assert loaded.pack.problems["demo.py"] == "demo.py:1: is not Python: invalid syntax"
    assert list(loaded.pack.problems) == ["demo.py", "alias uno"]


def test_a_reload_sees_the_file_as_it_is_now() -> None:
    Path("demo.py").write_text(PACK)
    old = load("packs: [demo.py]\nserver: {port: 1}\n")
    Path("demo.py").write_text(PACK.replace("one()", "two()").replace('"one"', '"two"'))
    Path("oubliette.yaml").write_text("packs: [demo.py]\naliases: {dos: demo.two}\nserver: {port: 70000}\n")
    new = config.reload(old, environ={}, overrides={"port": 0})
    assert list(new.pack.local["demo"].tools) == ["two"]
    assert (new.source, new.pack.aliases, new.server.port) == (old.source, {"dos": "demo.two"}, 0)
    assert list(old.pack.local["demo"].tools) == ["one"]


def test_a_reload_checks_the_whole_file() -> None:
    old = load("aliases: {}\n")
    Path("oubliette.yaml").write_text("aliases: {}\nrelay:\n  max_pending: 0\n")
    with pytest.raises(ConfigError, match=r"^oubliette\.yaml:3: relay\.max_pending: must be "):
        config.reload(old, environ={}, overrides={})


def test_a_reload_without_a_file_looks_for_one_again() -> None:
    old = config.load(None, environ={}, overrides={})
    Path("oubliette.yaml").write_text("log: {level: debug}\n")
    assert config.reload(old, environ={}, overrides={}).log.level == "debug"
