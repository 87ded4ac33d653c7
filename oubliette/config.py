"""The configuration: one YAML file, read strictly into frozen Structs (WIRE section 9).

A file goes through three steps: `Document` turns YAML into a tree of `Given` values that know their line, the
command line's options are laid over it, and `Reader` turns it into the Structs below. The Structs are the whole
schema: names, types, bounds, defaults, and in `Meta.description` the words of the error. A new section is one Struct
and one line of `Sections`. The keys of the `ot` pack are read by `ot_pack.config`, which stands by itself.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from ot_pack.config import HOST, HTTP_URL, KEYS, PORT, PackConfig, VariableName, VariableValue, find, read
from ot_pack.document import Document, Given
from ot_pack.reader import ImpossibleError, Reader, either
from oubliette.agents.environment import DAEMON_VARIABLES
from oubliette.agents.environment import Environment as Environment
from oubliette.labels import MAX_PACKS, PACK

# About 31 years: longer than anything waits, and safe in every clock's arithmetic. NaN and infinity fall outside too.
_MAX_SECONDS: Final = 1e9
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
_MEMORY: Final = re.compile(r"([1-9][0-9]{0,15})([kKmMgG]?)\Z")
_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
# A container does not start with less; nobody has more.
MIN_MEMORY: Final = 16 * 2**20
MAX_MEMORY: Final = 1024 * 2**30
_AUTHORITY: Final = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?\Z"

Port = Annotated[int, Meta(ge=0, le=65535, description="a whole number from 0 to 65535")]
Count = Annotated[int, Meta(ge=1, le=10**9, description="a whole number from 1 to 1000000000")]
# 64 KiB is what a declaration's one schema may take; a message is held in memory whole, several times over.
MessageBytes = Annotated[int, Meta(ge=65536, le=2**30, description="a number of bytes from 65536 to 1073741824")]
BufferBytes = Annotated[int, Meta(ge=1024, le=2**40, description="a number of bytes from 1024 to 1099511627776")]
Seconds = Annotated[float, Meta(gt=0, le=_MAX_SECONDS, description="a number of seconds greater than 0, at most 1e9")]
# WIRE section 2: a tool's own timeout begins at 0.1.
MaxSeconds = Annotated[float, Meta(ge=0.1, le=_MAX_SECONDS, description="a number of seconds from 0.1 to 1e9")]
Grace = Annotated[float, Meta(ge=0, le=_MAX_SECONDS, description="a number of seconds from 0 to 1e9")]
Host = Annotated[str, Meta(description="an IP address or a host name, without port and brackets")]
AllowedHost = Annotated[
    str,
    Meta(pattern=f"^{_AUTHORITY}", description="a host as a Host header has it: example.com, example.com:80, [::1]"),
]
AllowedOrigin = Annotated[
    str, Meta(pattern=f"^[a-z][a-z0-9+.-]*://{_AUTHORITY}", description="an origin, such as https://example.com:8443")
]
ProfileName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z", description="a name of letters, digits, '.', '_' and '-'")
]
Argument = Annotated[
    str, Meta(pattern=r"^[^\0]*\Z", description="a string without NUL (in quotes where YAML reads something else)")
]
Argv = Annotated[tuple[Argument, ...], Meta(min_length=1, description="a list with the program first")]
# A tree of sessions, each with an agent and an open socket.
Depth = Annotated[int, Meta(ge=0, le=32, description="a whole number from 0 (no children) to 32")]
Children = Annotated[int, Meta(ge=0, le=10_000, description="a whole number from 0 (no children) to 10000")]
RuntimeKind = Annotated[
    Literal["auto", "process", "bubblewrap", "podman", "docker"],
    Meta(description="auto, process, bubblewrap, podman or docker"),
]
# It stands on a command line: it must not look like an option.
Image = Annotated[
    str, Meta(max_length=512, pattern=r"^(?![-])[!-~]*\Z", description="an image's name, such as localhost/agent:1")
]
NetworkKind = Annotated[Literal["none", "model", "host"], Meta(description="none, model or host")]
HostPort = Annotated[
    str, Meta(max_length=300, pattern=f"^{HOST}:{PORT}\\Z", description="HOST:PORT, such as api.example.com:443")
]
Memory = Annotated[
    str | int,
    Meta(description="an amount of memory from 16m to 1024g: a number of bytes, or with the suffix k, m or g"),
]
Cpus = Annotated[float, Meta(gt=0, le=4096, description="a number of processors greater than 0, at most 4096")]
Pids = Annotated[int, Meta(ge=8, le=4_194_304, description="a whole number from 8 to 4194304")]
# A ":" or a "," separates what podman and docker are told of a mount.
Mount = Annotated[
    str,
    Meta(
        max_length=4096,
        pattern=r"^(?:/(?!\.{1,2}(?:/|\Z))[^/\0:,]+)+\Z",
        description="an absolute path without '..', ':' and ','",
    ),
]
PackLabel = Annotated[
    str, Meta(pattern=rf"^{PACK}\Z", description="a pack's name: 1 to 64 letters, digits, '_' and '-'")
]
PackLabels = Annotated[tuple[PackLabel, ...], Meta(max_length=MAX_PACKS, description=f"at most {MAX_PACKS} packs")]
BaseUrl = Annotated[
    str, Meta(pattern=rf"\A\Z|{HTTP_URL}", description="an http or https URL with a host, such as https://x.com/v1")
]
Model = Annotated[str, Meta(max_length=256, pattern=r"^(?![-])[!-~]*\Z", description="a model's name, without spaces")]
Permissions = Annotated[Literal["sandbox", "all", "tools"], Meta(description="sandbox, all or tools")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Meta(description="debug, info, warning or error")]
LogFormat = Annotated[Literal["auto", "console", "json"], Meta(description="auto, console or json")]


def _is_host(text: str) -> bool:
    if ":" not in text and not text.replace(".", "").isdigit():
        return _HOST_NAME.match(text) is not None
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class ServerConfig(Struct, frozen=True, kw_only=True):
    """The HTTP door (WIRE section 4).

    `host`: the address to bind, an IP address or a host name. `port`: 0 to 65535, 0 = any free one.
    `allowed_hosts`: values of the Host header, besides localhost, 127.0.0.1, [::1] and the bound address; without a
    port, any port. `allowed_origins`: origins besides those of these hosts. `shutdown_grace_seconds`: 0 or more, how
    long sessions and streams may take to end after SIGTERM.
    """

    host: Host = "127.0.0.1"
    port: Port = 8080
    allowed_hosts: tuple[AllowedHost, ...] = ()
    allowed_origins: tuple[AllowedOrigin, ...] = ()
    shutdown_grace_seconds: Grace = 5

    def __post_init__(self) -> None:
        if not _is_host(self.host):
            raise ImpossibleError(("host",), "must be an IP address or a host name, without port and brackets")


class RelayConfig(Struct, frozen=True, kw_only=True):
    """The caller-tool relay (WIRE sections 1 to 3).

    Seconds: `timeout_seconds` (over 0, at most `max_timeout_seconds`) a caller may take unless its tool says otherwise,
    `max_timeout_seconds` (0.1 or more) a tool may ask for, `attach_grace_seconds` a call waits for the owner's very
    first stream, `disconnect_grace_seconds` for a stream that was lost, `poll_grace_seconds` a poll counts as connected
    after it returned (each 0 or more). `max_pending`: 1 or more, per session. `max_message_bytes`: 64 KiB to 1 GiB, a
    line, a body or a frame.
    """

    timeout_seconds: Seconds = 60
    max_timeout_seconds: MaxSeconds = 3600
    attach_grace_seconds: Grace = 10
    disconnect_grace_seconds: Grace = 0
    poll_grace_seconds: Grace = 15
    max_pending: Count = 1000
    max_message_bytes: MessageBytes = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.timeout_seconds > self.max_timeout_seconds:
            raise ImpossibleError(
                ("timeout_seconds", "max_timeout_seconds"),
                f"timeout_seconds ({self.timeout_seconds:g}) is more than "
                f"max_timeout_seconds ({self.max_timeout_seconds:g})",
            )


class SessionsConfig(Struct, frozen=True, kw_only=True):
    """Bounds of sessions (WIRE sections 4.3 and 5).

    `max_active_per_project`: 1 or more sessions that have not ended. `event_buffer`: 1 or more events, and
    `event_buffer_bytes`: 1 KiB or more, that a session's ring holds. `idle_timeout_seconds`: how long a session lives
    without event or stream, 0 = for ever. `max_depth`: 0 to 32, how deep child sessions nest. `max_children`: 0 to
    10,000 children of one parent that are alive at once.
    """

    max_depth: Depth = 3
    max_children: Children = 20
    max_active_per_project: Count = 100
    event_buffer: Count = 4000
    event_buffer_bytes: BufferBytes = 16 * 1024 * 1024
    idle_timeout_seconds: Grace = 3600


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """How agents are run.

    `kind`: `auto` is the strongest that works here. `image`: what podman and docker run; for `auto` neither is tried
    without one. `network`: `none`, `model` for `model_hosts` alone, through the daemon, or `host`. `model_hosts`:
    HOST:PORT, exactly as agents ask for them. `memory`: bytes, also with the suffix k, m or g, `cpus` and `pids`: what
    one session may take of each. `extra_args`: passed to podman or docker before the image. `mounts`: absolute host
    paths that agents see read-only at the same place.
    """

    kind: RuntimeKind = "auto"
    image: Image = ""
    network: NetworkKind = "model"
    model_hosts: tuple[HostPort, ...] = ()
    memory: Memory = "2g"
    cpus: Cpus = 2
    pids: Pids = 256
    extra_args: tuple[Argument, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def __post_init__(self) -> None:
        if self.kind in ("podman", "docker") and not self.image:
            raise ImpossibleError(("kind", "image"), f"{self.kind} needs an image: set runtime.image")
        if not MIN_MEMORY <= self.memory_bytes <= MAX_MEMORY:
            raise ImpossibleError(("memory",), f"must be {get_args(Memory)[1].description}")

    @property
    def memory_bytes(self) -> int:
        """`memory` as a number of bytes."""
        match = _MEMORY.match(str(self.memory))
        return int(match[1]) * _UNITS[match[2].lower()] if match else 0


class ExternalProfile(Struct, frozen=True, kw_only=True, tag="external", tag_field="type"):
    """An agent that someone else starts: the daemon only opens the session's socket (WIRE section 8)."""


class ProgramProfile(Struct, frozen=True, kw_only=True):
    """An agent that is started here: `command`, one argument or more, the program first; `env`, its variables."""

    command: Argv
    env: Environment = msgspec.field(default_factory=Environment)

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ImpossibleError(("command",), "must begin with the program to run")


class CommandProfile(ProgramProfile, frozen=True, kw_only=True, tag="command", tag_field="type"):
    """An agent that is any program: `{prompt}` in its `command` is replaced by the message, and without it the message
    comes on stdin.
    """


class AgentProfile(ProgramProfile, frozen=True, kw_only=True):
    """An agent with a protocol of its own, to which the daemon adds what that needs.

    `model`: what it is told to use, empty for its own default. `permissions`: `sandbox` gives it a free hand where it
    runs in a sandbox and only the tools of Oubliette elsewhere, `all` a free hand anywhere, `tools` only the tools of
    Oubliette.
    """

    model: Model = ""
    permissions: Permissions = "sandbox"


class ClaudeProfile(AgentProfile, frozen=True, kw_only=True, tag="claude", tag_field="type"):
    """Claude Code. Its endpoint and its key are variables: `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`."""

    command: Argv = ("claude",)


class EndpointProfile(AgentProfile, frozen=True, kw_only=True):
    """An agent that can be pointed at a model: `base_url`, an OpenAI-compatible endpoint, empty for the agent's own;
    `api_key_env`, the name of the variable that holds its key.
    """

    base_url: BaseUrl = ""
    api_key_env: VariableName = "OPENAI_API_KEY"


class CodexProfile(EndpointProfile, frozen=True, kw_only=True, tag="codex", tag_field="type"):
    """Codex."""

    command: Argv = ("codex",)


class OpencodeProfile(EndpointProfile, frozen=True, kw_only=True, tag="opencode", tag_field="type"):
    """OpenCode."""

    command: Argv = ("opencode",)


class AcpProfile(AgentProfile, frozen=True, kw_only=True, tag="acp", tag_field="type"):
    """Any agent that speaks the Agent Client Protocol over stdio, such as `[opencode, acp]`."""


Profile: TypeAlias = CommandProfile | ExternalProfile | ClaudeProfile | CodexProfile | OpencodeProfile | AcpProfile


def _default_profiles() -> dict[str, Profile]:
    demo = CommandProfile(command=(sys.executable, "-m", "oubliette.demo.agent", "{prompt}"))
    return {"command": demo, "external": ExternalProfile()}


class AgentsConfig(Struct, frozen=True, kw_only=True):
    """The agents that a session may be started with. `default` names one of `profiles`; profiles given in the file
    take the place of the built-in ones.
    """

    default: ProfileName = "command"
    profiles: Mapping[ProfileName, Profile] = msgspec.field(default_factory=_default_profiles)

    def __post_init__(self) -> None:
        if self.default not in self.profiles:
            known = either(self.profiles) or "none"
            raise ImpossibleError(("default", "profiles"), f"no profile is called {self.default}; there is {known}")


class LogConfig(Struct, frozen=True, kw_only=True):
    """The log on stderr. `level`: the least that is written. `format`: `auto` is console in a terminal, else json."""

    level: LogLevel = "info"
    format: LogFormat = "auto"


class Sections(Struct, frozen=True, kw_only=True):
    """The keys at the top of the file, beside those of the `ot` pack.

    `project_packs`: what a project's agents may use unless the project says otherwise.
    """

    server: ServerConfig = ServerConfig()
    relay: RelayConfig = RelayConfig()
    sessions: SessionsConfig = SessionsConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    agents: AgentsConfig = msgspec.field(default_factory=AgentsConfig)
    log: LogConfig = LogConfig()
    project_packs: PackLabels = ("ot",)


class Config(Sections, frozen=True, kw_only=True):
    """The whole configuration. `pack` is the part of the `ot` pack, `source` the file that it all came from, None for
    the defaults.
    """

    pack: PackConfig = PackConfig()
    source: Path | None = None


def load(path: Path | None, *, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Config:
    """Returns the configuration: `path`, else `$OUBLIETTE_CONFIG`, else `./oubliette.yaml`, else the user's config
    directory, else the defaults (WIRE section 9).

    `environ` is the daemon's environment, which `${VAR}` in the `env` of profiles and in servers refers to. `overrides`
    holds what the command line said for keys of `server` (`host`, `port`); None is not said. Local packs are loaded,
    which runs their code; one that is broken is a problem of `pack`. Raises `ConfigError`.
    """
    source = find(path, environ)
    root = Document(source).read() if source else Given({}, "")
    reader = Reader(environ, {Environment: _environment})
    values = reader.members(_lay_over(root, overrides), Sections, besides=KEYS)
    _check_each_once(root, values)
    pack = read(root, source.parent, environ) if source else PackConfig()
    return Config(**values, pack=pack, source=source)


def reload(current: Config, *, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Config:
    """Returns the configuration as its file is now, all of it checked; without a file one is looked for again.

    Nothing is in force by this: the caller takes what may change under way, and keeps `current` where this raises
    `ConfigError`. It reads files and runs the code of local packs, so under trio it belongs in a thread.
    """
    return load(current.source, environ=environ, overrides=overrides)


def _check_each_once(root: Given, values: Mapping[str, Any]) -> None:
    """A project's own packs are each named once (`labels.check_packs`)."""
    packs = values.get("project_packs", ())
    if len(set(packs)) < len(packs):
        raise root.entries()["project_packs"].error("names a pack twice")


def _environment(reader: Reader, given: Given) -> Environment:
    for name, entry in given.entries().items():
        if name in DAEMON_VARIABLES:
            raise entry.error("is set by the daemon itself")
    return Environment(reader.value(given, Mapping[VariableName, VariableValue]))


def _lay_over(root: Given, overrides: Mapping[str, object]) -> Given:
    said = {key: Given(value, f"--{key}", json.dumps(value)) for key, value in overrides.items() if value is not None}
    if not said:
        return root
    sections = root.entries()
    server = sections.get("server", Given({}, root.where))
    return Given({**sections, "server": Given({**server.entries(), **said}, server.where)}, root.where)
