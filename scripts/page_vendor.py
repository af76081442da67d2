"""Checks the vendored scripts of the page against their npm packages; `--write` replaces them. Needs npm."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "graph_agent" / "web" / "static" / "vendor"
FILES = {
    "preact@10.29.8": {"dist/preact.module.js": "preact.js", "LICENSE": "preact.LICENSE"},
    "htm@3.1.1": {"dist/htm.module.js": "htm.js", "LICENSE": "htm.LICENSE"},
    "marked@18.2.1": {"lib/marked.esm.js": "marked.js", "LICENSE": "marked.LICENSE"},
}
"""Package → file in it → file in the vendor folder."""


def main() -> None:
    """Compare or replace the files; exits with their names if they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    changed = []
    with tempfile.TemporaryDirectory() as folder:
        for package, files in FILES.items():
            command = ["npm", "pack", "--silent", package]
            packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
            with tarfile.open(Path(folder) / packed.stdout.split()[-1]) as archive:
                for source, name in files.items():
                    found = archive.extractfile(f"package/{source}")
                    assert found is not None, f"{package} has no {source}"
                    content, file = found.read(), VENDOR / name
                    if not file.exists() or file.read_bytes() != content:
                        changed.append(name)
                        if write:
                            file.write_bytes(content)
    if changed and not write:
        sys.exit(
            f"Not as in their packages: {', '.join(changed)}. `python -m scripts.page_vendor --write` replaces them."
        )


if __name__ == "__main__":
    main()
