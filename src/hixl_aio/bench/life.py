"""What an engine costs when it does nothing: to import, to open and close, to leave alone."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from time import perf_counter
from typing import Final

from hixl_aio import Engine
from hixl_aio.bench import _floors
from hixl_aio.bench.measure import Case, Known, Sampled, Timed
from hixl_aio.bench.stage import Stage
from hixl_aio.bench.statistics import quantile
from hixl_aio.bench.workload import Prepare, Target, Workload

__all__ = ("idling", "starts")

_PEERS: Final = 16
_WINDOW: Final = 2.0
_QUICK_WINDOW: Final = 0.2
_THREADS: Final = 3  # what an engine starts at least
_DEPENDENCIES: Final = "its dependencies alone"
_NO_ENGINE: Final = "without an engine"


def starts() -> Iterator[Workload]:
    """Importing the package, and an engine's whole life."""
    yield Workload(
        name="start.import",
        prepare=_prepare_import,
        target=Target(1.0, 30e-3, against=(_DEPENDENCIES,)),
        quick=True,
        once=True,
    )
    yield Workload(name="start.engine", prepare=_prepare_engine, target=Target(0.0, 5e-3), quick=True)


# ---- import

_WITH: Final = """
import sys, time
began, before = time.perf_counter(), set(sys.modules)
import hixl_aio
print(time.perf_counter() - began)
print(*(name for name in sys.modules if name not in before and name.split(".")[0] != "hixl_aio"))
"""
_WITHOUT: Final = """
import importlib, sys, time
began = time.perf_counter()
for name in sys.argv[1:]:
    importlib.import_module(name)
print(time.perf_counter() - began)
"""


async def _python(code: str, *arguments: str) -> list[str]:
    """The lines that a fresh interpreter prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    return output.decode().splitlines()


@contextlib.asynccontextmanager
async def _prepare_import(stage: Stage) -> AsyncIterator[Case]:
    _, names = await _python(_WITH)

    async def whole() -> Sequence[float]:
        return [float((await _python(_WITH))[0])]

    async def dependencies() -> Sequence[float]:
        return [float((await _python(_WITHOUT, *names.split()))[0])]

    yield Case(Sampled(whole), {_DEPENDENCIES: Sampled(dependencies)})


# ---- an engine's life


@contextlib.asynccontextmanager
async def _prepare_engine(stage: Stage) -> AsyncIterator[Case]:
    async def lives(repetitions: int) -> None:
        for _ in range(repetitions):
            async with Engine():
                pass

    async def threads(repetitions: int) -> None:
        _floors.start_threads(_THREADS, repetitions)

    yield Case(Timed(lives), {f"{_THREADS} threads, started and joined": Timed(threads)})


# ---- idling


def idling() -> Iterator[Workload]:
    """Processor time of a process whose engines have peers and nothing to do."""
    for where in ("initiator", "target"):
        yield Workload(
            name=f"idle.{where}",
            prepare=_prepare_idle(where),
            params={"peers": _PEERS},
            target=Target(1.0, 0.001, against=(_NO_ENGINE,)),
            unit="cores",
            quick=True,
            weight=4.0,
        )


def _prepare_idle(where: str) -> Prepare:
    """The initiator has one engine with 16 peers; the target has 16 engines with one peer each."""

    @contextlib.asynccontextmanager
    async def prepare(stage: Stage) -> AsyncIterator[Case]:
        await stage.clear()
        window = _QUICK_WINDOW if stage.quick else _WINDOW

        async def spent() -> float:
            if where == "initiator":
                return time.process_time()
            found: float = (await stage.pair.ask("usage"))["cpu"]
            return found

        async def share() -> Sequence[float]:
            before, began = await spent(), perf_counter()
            await asyncio.sleep(window)
            return [(await spent() - before) / (perf_counter() - began)]

        none = [each for _ in range(3) for each in await share()]
        async with Engine() as engine, stage.crowd(_PEERS, 128) as addresses:
            for address in addresses:
                await engine.connect(address)
            yield Case(Sampled(share), {_NO_ENGINE: Known(quantile(none, 0.5))})

    return prepare
