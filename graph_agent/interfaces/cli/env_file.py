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
    """A file of environment variables that was read. It holds the names of the variables, not their values."""

    path: Path
    used: tuple[str, ...]
    """Names of the variables that were set from the file, in order."""
    overridden: tuple[str, ...]
    """Names of the variables that the environment had already, and that keep the environment's value."""


def read_env_file(agent_file: Path) -> EnvFile | None:
    """Set the environment variables of the file `.env` next to an agent file.

    Variables that the environment has already are unchanged, and a name without `=` is ignored. Only the agent file's
    folder is searched, so that a server never reads the secrets of another project.

    Args:
        agent_file: Path of the agent file.

    Returns:
        The file that was read; None if there is no `.env`, or the agent file does not exist.

    Raises:
        ConfigError: The file cannot be read, a line is not NAME=VALUE, or a value contains a character that the
            environment does not permit.
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
    """Return the file `.env` that was read before a command's options were parsed; None if none was read."""
    found: EnvFile | None = context.meta.get(_READ)
    return found


if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object


class _ReadsEnvFile(_Base):
    """Mixin of commands with the option `--config`: reads the file `.env` before other options take their values from
    the environment.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, after setting the variables of the file `.env` next to the command's agent file.

        The agent file is that of `--config`, of `GRAPH_AGENT_CONFIG`, or the default. With `--no-env`, which is removed
        from the arguments, no file is read. A command that has no option `--config` only parses.
        Raises `ConfigError` if the file is invalid.
        """
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
    """A command that reads the file `.env` next to its agent file."""


class AgentGroup(_ReadsEnvFile, TyperGroup):
    """A group of commands that reads the file `.env` next to its agent file."""
