"""Write every generated file: `python -m scripts.reference`."""

from __future__ import annotations

import sys

from scripts.reference.files import FILES, ROOT

for path, text in FILES.items():
    file = ROOT / path
    current = text()
    if not file.exists() or file.read_text(encoding="utf-8") != current:
        file.write_text(current, encoding="utf-8")
        sys.stdout.write(f"wrote {path}\n")
