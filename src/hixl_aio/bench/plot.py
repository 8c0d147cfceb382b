"""The figure: latency and bandwidth over size. Needs matplotlib, the extra `plot`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hixl_aio.bench.errors import FileError, MissingError
from hixl_aio.bench.report import Report, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ("check_plot", "write_plot")

_FAMILIES: Final = ("put", "get")
_STYLES: Final = {"put": "-", "get": "--"}
_FLOOR: Final = "floor"


def check_plot() -> None:
    """Is there what a figure needs? To be asked before a long run.

    Raises:
        MissingError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingError("--plot", "matplotlib", "plot")


def write_plot(report: Report, path: Path) -> None:
    """Draw the puts and gets of the first loop.

    Raises:
        MissingError: matplotlib is not installed.
        FileError: nothing to draw, or the file cannot be written.
    """
    check_plot()
    from matplotlib.figure import Figure

    loop = next(iter(report.machine.get("loops", ())), "asyncio")
    chosen = [result for result in report.results if result.loop == loop and _is_drawn(result)]
    if not chosen:
        raise FileError(str(path), "there is nothing to draw: this run has no puts and gets over sizes")
    figure = Figure(figsize=(12, 5), layout="constrained")
    latency, bandwidth = figure.subplots(1, 2)
    for family in _FAMILIES:
        for link in sorted({str(result.params["link"]) for result in chosen}):
            line = [each for each in chosen if each.params["link"] == link and each.name.startswith(family)]
            _draw(latency, bandwidth, f"{family}, {link}", line, _STYLES[family])
    _draw_floor(latency, bandwidth, [each for each in chosen if each.name.startswith("put.shm.")])
    _label(latency, "µs until awaited")
    _label(bandwidth, "GB/s")
    latency.set_yscale("log")
    figure.suptitle(f"{report.machine.get('cpu')}, {report.machine.get('cores')} cores, {loop}")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise FileError(str(path), f"cannot be written: {error}") from None


def _is_drawn(result: Result) -> bool:
    return result.work is not None and result.name.split(".")[0] in _FAMILIES


def _draw(latency: Axes, bandwidth: Axes, name: str, line: Sequence[Result], style: str) -> None:
    points = [(int(each.params["nbytes"]), each.work.median) for each in line if each.work is not None]
    _lines(latency, bandwidth, name, points, style)


def _draw_floor(latency: Axes, bandwidth: Axes, line: Sequence[Result]) -> None:
    points = [(int(each.params["nbytes"]), each.floors[each.floor].median) for each in line if each.floor]
    _lines(latency, bandwidth, f"{_FLOOR} of put, shm", points, ":")


def _lines(
    latency: Axes, bandwidth: Axes, name: str, points: Sequence[tuple[int, float]], style: str
) -> None:
    if points:
        sizes, seconds = zip(*sorted(points), strict=True)
        latency.plot(sizes, [each * 1e6 for each in seconds], style, marker=".", label=name)
        rates = [size / each / 1e9 for size, each in zip(sizes, seconds, strict=True)]
        bandwidth.plot(sizes, rates, style, marker=".", label=name)


def _label(axes: Axes, unit: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes")
    axes.set_ylabel(unit)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
