"""A child of the demo that tells on standard error what it does: lines of `EVENT process-id role what`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

__all__ = ("main",)


def main() -> int:
    """Be the child whose module is the argument."""
    role = sys.argv[1].rpartition(".")[2]

    def tell(what: str) -> None:
        os.write(2, f"EVENT {os.getpid()} {role} {what}\n".encode())

    def tap(place: Any, name: str, what: str) -> None:
        original = getattr(place, name)

        def tapped(*args: Any, **kwargs: Any) -> Any:
            tell(what)
            return original(*args, **kwargs)

        setattr(place, name, tapped)

    tell("starts")
    module = importlib.import_module(sys.argv[1])
    tell("has imported")
    if role == "fetch":
        tap(module, "ensure", "fetches")
        tap(importlib.import_module("hixl_aio.demo.weights"), "_extract", "extracts")
    else:
        tap_work(module, tell, tap)
    status = module.main()
    assert isinstance(status, int)
    tell("returns")
    return status


def tap_work(module: Any, tell: Any, tap: Any) -> None:
    """Tell of messages and of computing."""
    from hixl_aio.demo import child, llama, plan

    for name in ("prepare", "advance"):
        if hasattr(module, name):
            tap(module, name, {"prepare": "loads", "advance": "computes"}[name])
    tap(llama.Llama, "decode_step", "steps")
    tap(plan.SlotLayout, "poison", "lends")
    send = child.Parent.send

    async def tapped_send(self: child.Parent, message: Any) -> None:
        await send(self, message)
        tell(f"says {type(message).__name__}")

    child.Parent.send = tapped_send  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
