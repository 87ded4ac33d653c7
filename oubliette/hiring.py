"""From the configuration to who works in sessions, and where: agents of profiles, and the runtimes that work here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from oubliette import bundle
from oubliette.agents.base import Agent
from oubliette.agents.command import CommandAgent
from oubliette.agents.known import AGENTS
from oubliette.agents.profile import Options
from oubliette.config import (
    AgentProfile,
    CommandProfile,
    Config,
    EndpointProfile,
    ExternalProfile,
    Profile,
)
from oubliette.homes import Homes
from oubliette.runtimes.base import Settings
from oubliette.runtimes.choose import choose, clean
from oubliette.runtimes.configured import BUNDLES, settings_of
from oubliette.workplace import Workforce


async def hire(config: Config, data_dir: Path, homes: Homes) -> tuple[Workforce, Callable[[], Awaitable[None]]]:
    """Returns who may work in sessions, and what clears away what a crashed daemon left: it may run beside sessions.

    Raises `InternalError`, in words for the operator, where the configured runtime does not work here.
    """
    settings = await _settings(config, data_dir)
    choice = await choose(config.runtime.kind, settings)
    workforce = Workforce(
        agents={name: _agent(profile) for name, profile in config.agents.profiles.items()},
        runtimes=choice.runtimes,
        default_runtime=choice.runtime.name,
        homes=homes,
    )
    return workforce, partial(clean, choice, settings)


async def _settings(config: Config, data_dir: Path) -> Settings:
    folder = data_dir / BUNDLES
    # A process of this host has the daemon's own client.
    needs_bundle = config.runtime.kind != "process"
    made = await trio.to_thread.run_sync(bundle.ensure, folder) if needs_bundle else folder
    return settings_of(config, data_dir, made)


def _agent(profile: Profile) -> Agent | None:
    match profile:
        case ExternalProfile():
            return None
        case CommandProfile():
            return CommandAgent(profile.command, profile.env)
        case _:
            return AGENTS[str(profile.__struct_config__.tag)](_options(profile))


def _options(profile: AgentProfile) -> Options:
    options = Options(
        command=profile.command, environment=profile.env, model=profile.model, permissions=profile.permissions
    )
    if isinstance(profile, EndpointProfile):
        return replace(options, base_url=profile.base_url, api_key_env=profile.api_key_env)
    return options
