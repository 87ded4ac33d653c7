"""The configuration: one YAML file, read strictly into frozen Structs (WIRE section 9).

A file goes through three steps: `Document` turns YAML into a tree of `Given` values that know their line, the
command line's options are laid over it, and `_Reader` turns it into the Structs below. The Structs are the whole
schema: names, types, bounds, defaults, and in `Meta.description` the words of the error. A new section is one Struct
and one line of `Sections`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from oubliette.agents.environment import DAEMON_VARIABLES
from oubliette.agents.environment import Environment as Environment
from oubliette.config_file import Document, Given, readable

# About 31 years: longer than anything waits, and safe in every clock's arithmetic. NaN and infinity fall outside too.
_MAX_SECONDS: Final = 1e9
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REFERENCE: Final = re.compile(r"\$\{([^}]*)(\}?)")
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
RuntimeKind = Annotated[
    Literal["auto", "process"], Meta(description="auto or process (this version runs agents as a process alone)")
]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Meta(description="debug, info, warning or error")]
LogFormat = Annotated[Literal["auto", "console", "json"], Meta(description="auto, console or json")]


class _ImpossibleError(ValueError):
    """Values that do not go together: the keys concerned, the likeliest first, and why."""

    def __init__(self, keys: tuple[str, ...], why: str) -> None:
        super().__init__(f"{keys[0]}: {why}")
        self.keys = keys
        self.why = why


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
            raise _ImpossibleError(("host",), "must be an IP address or a host name, without port and brackets")


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
            raise _ImpossibleError(
                ("timeout_seconds", "max_timeout_seconds"),
                f"timeout_seconds ({self.timeout_seconds:g}) is more than "
                f"max_timeout_seconds ({self.max_timeout_seconds:g})",
            )


class SessionsConfig(Struct, frozen=True, kw_only=True):
    """Bounds of sessions (WIRE sections 4.3 and 5).

    `max_active_per_project`: 1 or more sessions that have not ended. `event_buffer`: 1 or more events, and
    `event_buffer_bytes`: 1 KiB or more, that a session's ring holds. `idle_timeout_seconds`: how long a session lives
    without event or stream, 0 = for ever.
    """

    max_active_per_project: Count = 100
    event_buffer: Count = 4000
    event_buffer_bytes: BufferBytes = 16 * 1024 * 1024
    idle_timeout_seconds: Grace = 3600


class RuntimeConfig(Struct, frozen=True, kw_only=True):
    """How agents are run. `kind`: `process`, or `auto` for the strongest that works, which is `process` so far."""

    kind: RuntimeKind = "auto"


class CommandProfile(Struct, frozen=True, kw_only=True, tag="command", tag_field="type"):
    """An agent that is a program.

    `command`: one argument or more, the program first; `{prompt}` in it is replaced by the message, and without it the
    message comes on stdin. `env`: added to the agent's environment.
    """

    command: Argv
    env: Environment = msgspec.field(default_factory=Environment)

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise _ImpossibleError(("command",), "must begin with the program to run")


class ExternalProfile(Struct, frozen=True, kw_only=True, tag="external", tag_field="type"):
    """An agent that someone else starts: the daemon only opens the session's socket (WIRE section 8)."""


Profile: TypeAlias = CommandProfile | ExternalProfile


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
            known = _either(self.profiles) or "none"
            raise _ImpossibleError(("default", "profiles"), f"no profile is called {self.default}; there is {known}")


class LogConfig(Struct, frozen=True, kw_only=True):
    """The log on stderr. `level`: the least that is written. `format`: `auto` is console in a terminal, else json."""

    level: LogLevel = "info"
    format: LogFormat = "auto"


class Sections(Struct, frozen=True, kw_only=True):
    """The keys at the top of the file."""

    server: ServerConfig = ServerConfig()
    relay: RelayConfig = RelayConfig()
    sessions: SessionsConfig = SessionsConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    agents: AgentsConfig = msgspec.field(default_factory=AgentsConfig)
    log: LogConfig = LogConfig()


class Config(Sections, frozen=True, kw_only=True):
    """The whole configuration. `source` is the file that it came from, None for the defaults."""

    source: Path | None = None


def load(path: Path | None, *, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Config:
    """Returns the configuration: `path`, else `$OUBLIETTE_CONFIG`, else `./oubliette.yaml`, else the user's config
    directory, else the defaults (WIRE section 9).

    `environ` is the daemon's environment, which `${VAR}` in a profile's `env` refers to. `overrides` holds what the
    command line said for keys of `server` (`host`, `port`); None is not said. Raises `ConfigError`.
    """
    source = _find(path, environ)
    root = Document(source).read() if source else Given({}, "")
    values = _Reader(environ).members(_lay_over(root, overrides), Sections)
    return Config(**values, source=source)


def _find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if environ.get("OUBLIETTE_CONFIG"):
        return Path(environ["OUBLIETTE_CONFIG"])
    return next((candidate for candidate in _usual_places(environ) if os.path.exists(candidate)), None)


def _usual_places(environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path("oubliette.yaml")
    # XDG Base Directory: "If an implementation encounters a relative path … it should consider the path invalid".
    if environ.get("XDG_CONFIG_HOME", "").startswith("/"):
        yield Path(environ["XDG_CONFIG_HOME"], "oubliette", "oubliette.yaml")
    elif environ.get("HOME"):
        yield Path(environ["HOME"], ".config", "oubliette", "oubliette.yaml")


def _lay_over(root: Given, overrides: Mapping[str, object]) -> Given:
    said = {key: Given(value, f"--{key}", json.dumps(value)) for key, value in overrides.items() if value is not None}
    if not said:
        return root
    sections = root.entries()
    server = sections.get("server", Given({}, root.where))
    return Given({**sections, "server": Given({**server.entries(), **said}, server.where)}, root.where)


class _Reader:
    """Turns what was given into the type that a Struct's field has."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def members(self, given: Given, struct: type[Struct]) -> dict[str, Any]:
        known = {info.name: info.type for info in msgspec.structs.fields(struct)}
        entries = given.entries()
        for key, entry in entries.items():
            if key not in known:
                raise entry.error(f"unknown key{_suggestion(key, known)}")
        return {key: self._value(entry, known[key]) for key, entry in entries.items()}

    def _value(self, given: Given, wanted: Any) -> Any:
        bare = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted
        if bare is Environment:
            return Environment({name: self._variable(name, entry) for name, entry in given.entries().items()})
        if isinstance(bare, type) and issubclass(bare, Struct):
            return self._struct(given, bare)
        if get_origin(bare) is UnionType:
            return self._tagged(given, get_args(bare))
        if get_origin(bare) is Mapping:
            return self._named(given, *get_args(bare))
        return _checked(given, self._items(given, bare) if get_origin(bare) is tuple else given.value, wanted)

    def _struct(self, given: Given, struct: type[Struct]) -> Struct:
        values = self.members(given, struct)
        missing = [f.name for f in msgspec.structs.fields(struct) if f.required and f.name not in values]
        if missing:
            raise given.error(f"needs the key {missing[0]}")
        try:
            return struct(**values)
        except _ImpossibleError as error:
            blamed = next((given.entries()[key] for key in error.keys if key in values), given)
            raise blamed.error(error.why) from None

    def _tagged(self, given: Given, structs: Iterable[type[Struct]]) -> Struct:
        kinds = {str(struct.__struct_config__.tag): struct for struct in structs}
        entries = dict(given.entries())
        kind = entries.pop("type", None)
        if kind is None:
            raise given.error(f"needs the key type: {_either(kinds)}")
        if not (isinstance(kind.value, str) and kind.value in kinds):
            raise kind.error(f"must be {_either(kinds)}, not {kind.shown}")
        return self._struct(Given(entries, given.where), kinds[kind.value])

    def _named(self, given: Given, name: Any, wanted: Any) -> dict[str, Any]:
        entries = given.entries()
        for key, entry in entries.items():
            _checked(Given(key, entry.where, readable(key)), key, name)
        return {key: self._value(entry, wanted) for key, entry in entries.items()}

    def _items(self, given: Given, wanted: Any) -> tuple[Any, ...]:
        if not isinstance(given.value, list):
            raise given.error("must be a list")
        return tuple(self._value(item, get_args(wanted)[0]) for item in given.value)

    def _variable(self, name: str, given: Given) -> str:
        # No error here shows the value: it may be a secret.
        if not _VARIABLE.match(name):
            raise given.error("is no variable's name: letters, digits and _")
        if name in DAEMON_VARIABLES:
            raise given.error("is set by the daemon itself")
        if not isinstance(given.value, str) or "\0" in given.value:
            raise given.error("must be a string without NUL (in quotes where YAML reads something else)")
        return _REFERENCE.sub(lambda match: self._referred(match, given), given.value)

    def _referred(self, match: re.Match[str], given: Given) -> str:
        name, end = match.groups()
        if not end or not _VARIABLE.match(name):
            raise given.error("${ begins a reference: write ${NAME}, a variable of the daemon's environment")
        if name not in self._environ:
            raise given.error(f"${{{name}}} is not set in the daemon's environment")
        return self._environ[name]


def _checked(given: Given, value: Any, wanted: Any) -> Any:
    """Returns `value` as msgspec converts it; what it refuses is told in the words of the type's `Meta`."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        meta = next(item for item in get_args(wanted) if isinstance(item, Meta))
        raise given.error(f"must be {meta.description}, not {given.shown}") from None


def _suggestion(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    nearest = difflib.get_close_matches(key, names, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else f"; here may stand {_either(names)}"


def _either(names: Iterable[str]) -> str:
    return " or ".join(", ".join(names).rsplit(", ", 1))
