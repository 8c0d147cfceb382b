"""The command `hixl-aio`. What it needs (typer, rich) is an extra: without it, the command says which."""

from __future__ import annotations

import sys

__all__ = ("main",)


def main() -> None:
    """Run the command line."""
    try:
        from hixl_aio.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("typer", "rich", "click"):
            raise
        print(
            f"hixl-aio: the command line needs {error.name}, which is not installed;"
            " pip install 'hixl-aio[cli]' (or 'hixl-aio[demo]' for the demo)",
            file=sys.stderr,
        )
        sys.exit(1)
    app()
