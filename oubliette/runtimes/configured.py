"""What the operator's configuration says of runtimes, in the words of `Settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from oubliette.config import Config, ProgramProfile
from oubliette.runtimes.base import Settings

# Below the data directory: the bundles (`oubliette.bundle.ensure`).
BUNDLES: Final = "client"
_PROMPT: Final = "{prompt}"


def settings_of(config: Config, data_dir: Path, bundle: Path) -> Settings:
    """Returns the settings of the runtimes of one daemon."""
    runtime = config.runtime
    return Settings(
        data_dir=data_dir.absolute(),
        bundle=bundle,
        network=runtime.network,
        model_hosts=runtime.model_hosts,
        image=runtime.image,
        memory=runtime.memory_bytes,
        cpus=runtime.cpus,
        pids=runtime.pids,
        extra_args=runtime.extra_args,
        mounts=runtime.mounts,
        commands=tuple(commands(config).values()),
    )


def commands(config: Config) -> dict[str, tuple[str, ...]]:
    """Returns the commands of the profiles that start a program, by profile, without what a message is put into."""
    return {
        name: tuple(argument for argument in profile.command if _PROMPT not in argument)
        for name, profile in config.agents.profiles.items()
        if isinstance(profile, ProgramProfile)
    }
