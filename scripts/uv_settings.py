"""Prints pip's configuration as variables of uv, which does not read it.

Usage in a shell: `eval "$(python -m scripts.uv_settings)"`.
"""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys

_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "no-index": "UV_NO_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
_SECTIONS = ("global", "install", ":env:")
"""Sections that concern an installation; each overrides those before it."""


def variables(listed: str) -> dict[str, str]:
    """Return variables of uv with the effect of pip's configuration.

    Args:
        listed: The output of `pip config list`: a line `SECTION.OPTION='VALUE'` for each option.
    """
    options: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in options and option in _VARIABLES:
            options[section][option] = ast.literal_eval(value)
    given = {option: value for section in _SECTIONS for option, value in options[section].items()}
    found = {
        # uv separates the places of --find-links by commas, and all others by spaces.
        _VARIABLES[option]: ("," if option == "find-links" else " ").join(value.split())
        for option, value in given.items()
    }
    # Like pip, take the best version of all indexes; uv alone takes that of the first index that has the package.
    return {**found, "UV_INDEX_STRATEGY": "unsafe-best-match"}


def main() -> None:
    """Print one `export` command for each variable."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name, value in variables(listed).items():
        print(f"export {name}={shlex.quote(value)}")  # noqa: T201 - the output of this script


if __name__ == "__main__":
    main()
