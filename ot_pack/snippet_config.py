"""The snippets of a configuration file, each read and its template parsed, so that a mistake is found at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ot_pack.document import Given
from ot_pack.reader import Reader
from ot_pack.snippets import Param, Snippet

MAX_PARAMS: Final = 64
MAX_DESCRIPTION: Final = 1024
MAX_BODY: Final = 64 * 1024
# What the template language reads as something else than a parameter's name.
_WORDS: Final = ("and", "else", "false", "False", "if", "in", "is", "none", "None", "not", "or", "self", "true", "True")

SnippetName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z",
        description="a name of 1 to 64 letters, digits, '_' and '-' that begins with a letter or a digit",
    ),
]
ParamName = Annotated[
    str,
    Meta(
        pattern=rf"^(?!(?:{'|'.join(_WORDS)})\Z)[A-Za-z_][A-Za-z0-9_]{{0,63}}\Z",
        description="a parameter's name: letters, digits and _, no digit first, and no word of Jinja2's",
    ),
]
Description = Annotated[
    str, Meta(max_length=MAX_DESCRIPTION, description=f"a string of at most {MAX_DESCRIPTION} characters")
]
Scalar = Annotated[str | int | float | bool | None, Meta(description="a string, a number, true, false or nothing")]
Body = Annotated[str, Meta(min_length=1, max_length=MAX_BODY, description=f"a template of 1 to {MAX_BODY} characters")]


class _ParamSection(Struct, frozen=True, kw_only=True):
    description: Description = ""
    default: Scalar = None
    example: Scalar = None


class _SnippetSection(Struct, frozen=True, kw_only=True):
    description: Description = ""
    params: Annotated[
        Mapping[ParamName, Param], Meta(max_length=MAX_PARAMS, description=f"at most {MAX_PARAMS} parameters")
    ] = {}
    body: Body


def read_snippet(reader: Reader, given: Given) -> Snippet:
    """Returns a snippet as it was given, without its name, which is the key. Raises `ConfigError`."""
    section: _SnippetSection = reader.struct(given, _SnippetSection)
    _check_body(given.entries()["body"], section)
    return Snippet(name="", description=section.description, params=section.params, body=section.body)


def with_name(name: str, snippet: Snippet) -> Snippet:
    """Returns a snippet with its name, which is the key that it was given under."""
    return Snippet(name=name, description=snippet.description, params=snippet.params, body=snippet.body)


def read_param(reader: Reader, given: Given) -> Param:
    """Returns a parameter as it was given: no default is not the default `None`. Raises `ConfigError`."""
    return Param(**reader.members(given, _ParamSection))


def _check_body(given: Given, section: _SnippetSection) -> None:
    # Not at the top: it takes 50 ms, and most configurations have no snippet.
    from jinja2 import TemplateError, meta
    from jinja2.sandbox import SandboxedEnvironment

    try:
        parsed = SandboxedEnvironment(optimized=False).parse(section.body)
        variables = meta.find_undeclared_variables(parsed)
    except TemplateError as error:
        line = getattr(error, "lineno", 1)
        raise given.error(f"is no Jinja2 template: {error.message} (line {line} of it)") from None
    _check_variables(given, variables, section.params)
    if any(meta.find_referenced_templates(parsed)):
        raise given.error("refers to another template: a snippet stands by itself")


def _check_variables(given: Given, variables: set[str], params: Mapping[str, Any]) -> None:
    unknown = sorted(variables - params.keys())
    if unknown:
        declared = f"declared are {', '.join(params)}" if params else "none is declared"
        raise given.error(f"uses {', '.join(unknown)}, which is no parameter: {declared}")
