"""Reads the file `.env` next to an agent file into the environment, before a command's options are parsed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from graph_agent.base.errors import ConfigError
from graph_agent.interfaces.cli.options import AGENT_FILE

NO_ENV = "--no-env"
_CONFIG_VARIABLE = "GRAPH_AGENT_CONFIG"
_READ = "graph_agent.env_file"
"""Key of the context's `meta` with the `EnvFile` that was read; absent without one."""


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A file of environment variables that was read, without its values."""

    path: Path
    used: tuple[str, ...]
    """Names of the variables that it has set, in order."""
    overridden: tuple[str, ...]
    """Names of the variables that the environment had already, which wins."""


def read_env_file(agent_file: Path) -> EnvFile | None:
    """Set the variables of the file `.env` next to an agent file, except those that the environment has.

    Args:
        agent_file: Path of the agent file. No other folder is searched, so that a server never takes the secrets of
            another project.

    Returns:
        The file; None if there is none, or no agent file.

    Raises:
        ConfigError: When the file cannot be read, a line is not NAME=VALUE, or a value is none that an environment may
            have.
    """
    agent_file = agent_file.resolve()
    path = agent_file.with_name(".env")
    if not agent_file.is_file() or not path.is_file():
        return None
    # Imported here: most folders have no such file.
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    used, overridden = list[str](), list[str]()
    try:
        text = path.read_text(encoding="utf-8")
        # `dotenv_values` leaves such lines out, and the command would run without their variables.
        if wrong := [each.original for each in parse_stream(StringIO(text)) if each.error]:
            # A statement begins with the blank lines before it.
            blank = wrong[0].string.removesuffix(wrong[0].string.lstrip()).count("\n")
            raise ConfigError(
                f"Environment file {path}, line {wrong[0].line + blank}: it is not NAME=VALUE, or a quotation mark is "
                f"missing. Correct it, or leave the file out with {NO_ENV}."
            )
        for name, value in dotenv_values(stream=StringIO(text)).items():
            if name in os.environ:
                overridden.append(name)
            elif value is not None:
                os.environ[name] = value
                used.append(name)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        # The text of a decoding error has bytes of the file.
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text with lines NAME=VALUE"
        raise ConfigError(f"Environment file {path}: {why}. Correct it, or leave it out with {NO_ENV}.") from None
    return EnvFile(path, tuple(used), tuple(overridden))


def env_file_of(context: typer.Context) -> EnvFile | None:
    """Return the file that was read for a command; None if there was none."""
    found: EnvFile | None = context.meta.get(_READ)
    return found


if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object


class _ReadsEnvFile(_Base):
    """Reads the file for a command with `--config`, before other options look at the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `--no-env` out of the arguments, read the file without it, and parse the others."""
        if ctx.resilient_parsing or not any(each.name == "config" for each in self.params):
            return super().parse_args(ctx, args)
        # Typer has no public way to add an option to many commands.
        end = args.index("--") if "--" in args else len(args)
        args, is_read = [*(each for each in args[:end] if each != NO_ENV), *args[end:]], NO_ENV not in args[:end]
        given, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        config = given.get("config") or os.environ.get(_CONFIG_VARIABLE) or AGENT_FILE
        if is_read and (found := read_env_file(Path(config))) is not None:
            ctx.meta[_READ] = found
        return super().parse_args(ctx, args)


class AgentCommand(_ReadsEnvFile, TyperCommand):
    """A command that may read the file `.env` of its agent."""


class AgentGroup(_ReadsEnvFile, TyperGroup):
    """A group of commands that may read the file `.env` of its agent."""
