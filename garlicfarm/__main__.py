"""``python -m garlicfarm`` is the command ``garlicfarm``."""

from __future__ import annotations

from garlicfarm.cli import main

if __name__ == "__main__":
    main()
