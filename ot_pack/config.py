"""The `ot` pack's part of the configuration: its one reader, for the daemon and for `python -m ot_pack`.

The keys `aliases`, `snippets`, `servers`, `packs`, `topics` and `prompts` of the one file. Names that cannot stand side
by side are refused here (`collisions`), local packs are loaded here (`local`), and a pack whose file is broken is a
problem that is told, not an end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ot_pack import collisions, topics
from ot_pack.document import Document, Given
from ot_pack.local import LocalPack, load_all
from ot_pack.names import ALIAS, PACK
from ot_pack.reader import REFERENCES, ImpossibleError, Reader, Secrets, Special
from ot_pack.snippet_config import SnippetName, read_param, read_snippet, with_name
from ot_pack.snippets import Param, Snippet
from ot_pack.topics import Topic

# The file itself is bounded (`document`); these bound what the daemon starts, loads, and offers for it.
MAX_ALIASES: Final = 1000
MAX_SNIPPETS: Final = 1000
MAX_TOPICS: Final = 100
# A task each, and for stdio a process.
MAX_SERVERS: Final = 64
MAX_PATTERNS: Final = 100
MAX_ARGUMENTS: Final = 256
# As long as a tool's description may be (WIRE section 2): an agent reads it in one piece.
MAX_INSTRUCTIONS: Final = 16 * 1024
# A call to a server that nobody waits for any more ends within a day.
MAX_TIMEOUT_SECONDS: Final = 86_400.0

# 1 to 65535, as an authority has it.
PORT: Final = r"(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
HOST: Final = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)"
HTTP_URL: Final = rf"^https?://{HOST}(?::{PORT})?(?:[/?][!-~]*)?\Z"
_A_STRING: Final = "without NUL (in quotes where YAML reads something else)"

_LETTERS: Final = "letters, digits, '_' and '-' that begins with a letter or a digit"

PackName = Annotated[str, Meta(pattern=rf"^{PACK}\Z", description=f"a name of 1 to 32 {_LETTERS}")]
AliasName = Annotated[str, Meta(pattern=rf"^{ALIAS}\Z", description=f"a name of 1 to 64 {_LETTERS}")]
# What it may be is `collisions`' to say: an alias of itself has a word of its own.
Target = Annotated[str, Meta(description="a tool's name: pack.tool")]
Pattern = Annotated[
    str, Meta(min_length=1, max_length=4096, pattern=r"^[^\0]*\Z", description="a file or a glob, such as packs/*.py")
]
Command = Annotated[str, Meta(pattern=r"^[^\0]*\Z", description=f"a string {_A_STRING}"), REFERENCES]
Argument = Annotated[str, Meta(pattern=r"^[^\0]*\Z", description=f"a string {_A_STRING}"), REFERENCES]
Url = Annotated[str, Meta(pattern=HTTP_URL, description="an http or https URL with a host"), REFERENCES]
VariableName = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="a variable's name: letters, digits and _")
]
VariableValue = Annotated[str, Meta(pattern=r"^[^\0]*\Z", description=f"a string {_A_STRING}"), REFERENCES]
# RFC 9110: a field name is a token, a field value visible characters, spaces and tabs.
HeaderName = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z", description="an HTTP header's name")]
HeaderValue = Annotated[
    str,
    Meta(
        pattern=r"^(?:[!-~](?:[ -~\t]*[!-~])?)?\Z",
        description="a header's value: a string of ASCII characters (in quotes where YAML reads something else)",
    ),
    REFERENCES,
]
Timeout = Annotated[
    float, Meta(ge=0.1, le=MAX_TIMEOUT_SECONDS, description="a number of seconds from 0.1 to 86400 (a day)")
]
TopicPattern = Annotated[
    str, Meta(min_length=1, max_length=200, description='a pattern of topics in quotes, such as "notes*"')
]
TopicFile = Annotated[str, Meta(min_length=1, max_length=1024, description="a file, such as notes.yaml")]
PromptsFile = Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\0]*\Z", description="a file's name")]
Instructions = Annotated[str, Meta(max_length=MAX_INSTRUCTIONS, description="a text of at most 16384 characters")]


class Variables(Secrets):
    """Environment variables of a proxied server."""


class Headers(Secrets):
    """HTTP headers for a proxied server."""


class ServerConfig(Struct, frozen=True, kw_only=True):
    """A proxied MCP server: a `command` with `args` and `env` (stdio), or a `url` with `headers` (streamable HTTP).

    Exactly one of `command` and `url` is not empty. `env`: variables on top of those that such a server gets.
    `timeout_seconds`: 0.1 to 86400, how long a call may take. Every string may have been `${NAME}`, so the repr shows
    none that could be a secret.
    """

    command: Command = ""
    args: Annotated[
        tuple[Argument, ...], Meta(max_length=MAX_ARGUMENTS, description=f"a list of at most {MAX_ARGUMENTS} strings")
    ] = ()
    env: Variables = msgspec.field(default_factory=Variables)
    url: Url = ""
    headers: Headers = msgspec.field(default_factory=Headers)
    timeout_seconds: Timeout = 60

    def __post_init__(self) -> None:
        if self.command and self.url:
            raise ImpossibleError(("url", "command"), "a server has a command or a url, not both")
        if not self.command and not self.url:
            raise ImpossibleError(("command", "url"), "a server needs a command or a url")
        if self.url and (self.args or self.env):
            raise ImpossibleError(("args", "env"), "goes with a command: a url has headers")
        if self.command and self.headers:
            raise ImpossibleError(("headers",), "goes with a url: a command has args and env")

    def __repr__(self) -> str:
        return f"<ServerConfig {'stdio' if self.command else 'http'} {self.env} {self.headers}>"


class _TopicSection(Struct, frozen=True, kw_only=True):
    pattern: TopicPattern
    file: TopicFile


class _Prompts(Struct, frozen=True, kw_only=True):
    """The file that `prompts` names."""

    packs: Mapping[PackName, Instructions] = {}


class Sections(Struct, frozen=True, kw_only=True):
    """The keys of the file that are the `ot` pack's.

    `aliases`: other names of tools. `snippets`: templates with parameters. `servers`: proxied MCP servers. `packs`:
    files or globs of local packs, relative to the configuration file. `topics`: where `ot.notify` writes to. `prompts`:
    the file with the packs' instructions, relative to the configuration file, read where it exists.
    """

    aliases: Annotated[
        Mapping[AliasName, Target], Meta(max_length=MAX_ALIASES, description=f"at most {MAX_ALIASES} aliases")
    ] = {}
    snippets: Annotated[
        Mapping[SnippetName, Snippet], Meta(max_length=MAX_SNIPPETS, description=f"at most {MAX_SNIPPETS} snippets")
    ] = {}
    servers: Annotated[
        Mapping[PackName, ServerConfig], Meta(max_length=MAX_SERVERS, description=f"at most {MAX_SERVERS} servers")
    ] = {}
    packs: Annotated[
        tuple[Pattern, ...], Meta(max_length=MAX_PATTERNS, description=f"at most {MAX_PATTERNS} files or globs")
    ] = ()
    topics: Annotated[tuple[Topic, ...], Meta(max_length=MAX_TOPICS, description=f"at most {MAX_TOPICS} topics")] = ()
    prompts: PromptsFile = "prompts.yaml"


class PackConfig(Sections, frozen=True, kw_only=True):
    """The `ot` pack's part of the configuration, with what it names read and loaded.

    `instructions`: pack to text. `local`: the local packs by name. `problems`: what is broken and does not stop the
    rest, the files of local packs for one, and why: `ot.health` tells it.
    """

    instructions: Mapping[str, str] = {}
    local: Mapping[str, LocalPack] = {}
    problems: Mapping[str, str] = {}


KEYS: Final = frozenset(Sections.__struct_fields__)


def read(root: Given, folder: Path, environ: Mapping[str, str] | None) -> PackConfig:
    """Returns the `ot` pack's part of a configuration file; keys that are not its own are not its business.

    `folder` is the one that the file lies in. `environ` is what `${NAME}` refers to; without it references are left as
    they are. Loading local packs runs their code. Raises `ConfigError`.
    """
    ours = Given({key: entry for key, entry in root.entries().items() if key in KEYS}, root.where)
    values = Reader(environ, _SPECIALS).members(ours, Sections)
    sections = Sections(**values)
    local, problems = load_all(sections.packs, folder)
    hollow = collisions.check(ours, local, some_are_broken=bool(problems))
    named = {name: with_name(name, snippet) for name, snippet in sections.snippets.items()}
    instructions = _instructions(folder / sections.prompts)
    return PackConfig(
        **{**values, "snippets": named}, instructions=instructions, local=local, problems={**problems, **hollow}
    )


def find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Returns the configuration file: `path`, else `$OUBLIETTE_CONFIG`, else `./oubliette.yaml`, else the one in the
    user's config directory, None where there is none (WIRE section 9).
    """
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


def _instructions(path: Path) -> Mapping[str, str]:
    if not os.path.exists(path):
        return {}
    prompts: _Prompts = Reader({}).struct(Document(path).read(), _Prompts)
    return prompts.packs


def _topic(reader: Reader, given: Given) -> Topic:
    section: _TopicSection = reader.struct(given, _TopicSection)
    try:
        topics.parts(section.file)
    except ValueError as error:
        raise given.entries()["file"].error(str(error)) from None
    return Topic(pattern=section.pattern, file=section.file)


def _variables(reader: Reader, given: Given) -> Variables:
    return Variables(reader.value(given, Mapping[VariableName, VariableValue]))


def _headers(reader: Reader, given: Given) -> Headers:
    return Headers(reader.value(given, Mapping[HeaderName, HeaderValue]))


_SPECIALS: Final[Mapping[type, Special]] = {
    Snippet: read_snippet,
    Param: read_param,
    Topic: _topic,
    Variables: _variables,
    Headers: _headers,
}
