"""The command `hixl-aio`. What it needs (typer, rich) is an extra: without it, the command says which."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hixl_aio._program.interrupts import Interrupts

__all__ = ("main",)


def main() -> None:
    """Run the command line."""
    from hixl_aio._program.interrupts import Interrupts

    with Interrupts() as interrupts:  # from the first import on that takes time
        _run(interrupts)


def _run(interrupts: Interrupts) -> None:
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
    app(obj=interrupts)
