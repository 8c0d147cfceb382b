"""The demo with other children: `python -m tests.demo.parent OPTIONS ENTRY...`.

OPTIONS is a JSON object of `DemoOptions`. Each child is started as `ENTRY... MODULE` instead of `MODULE`, so
that a test can watch it or meddle with it; the product knows nothing of that.
"""

from __future__ import annotations

import json
import sys

from hixl_aio._program.interrupts import Interrupts

__all__ = ("main",)


def main() -> int:
    """Run the demo; returns its exit status."""
    with Interrupts() as interrupts:
        from hixl_aio._program import process
        from hixl_aio.demo import run, supervise

        options, *entry = sys.argv[1:]
        values = json.loads(options)
        values["prompts"] = tuple(values["prompts"])

        def command(module: str) -> list[str]:
            return process.child_command(*entry, module)

        vars(supervise)["child_command"] = command
        return run.run_demo(run.DemoOptions(**values), interrupts)


if __name__ == "__main__":
    sys.exit(main())
