"""What a run has to show: a table for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from hixl_aio.demo.options import ModelName

__all__ = ("FOOTNOTE", "Report", "RequestReport", "print_report", "to_json")

FOOTNOTE: Final = (
    "On loopback the transfer is about 1 % of prefill, so overlapping it is barely visible in these times; "
    "it counts where the link is slow."
)
_HEADINGS: Final = (  # in two lines, so that a table fits 80 columns
    "",
    "prompt\ntokens",
    "KV\nbytes",
    "\nprefill",
    "first\ntoken",
    "\ntransfer",
    "\nhidden",
    "new\ntokens",
    "per\nsecond",
)
_ABOUT: Final[dict[ModelName, str]] = {
    "smollm2": "SmolLM2-135M is an English model: other languages pass through, but their text is poor.",
    "tiny": "The tiny model has random weights: its text is noise by design.",
}


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One request. Times in seconds.

    Attributes:
        first_token: from the start of prefill until decode had the cache and the first token.
        transfer: how long at least one byte of the request was under way.
        hidden: how much of ``transfer`` passed while prefill was computing.
        tokens_per_second: of decoding, without the first token.
    """

    prompt: str
    text: str
    stopped: bool
    prompt_tokens: int
    new_tokens: int
    kv_nbytes: int
    prefill: float
    first_token: float
    transfer: float
    hidden: float
    tokens_per_second: float | None

    @property
    def hidden_share(self) -> float | None:
        return self.hidden / self.transfer if self.transfer > 0 else None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. ``verified`` is None where nothing was compared; ``difference`` says where it failed."""

    model: ModelName
    route: str
    requests: tuple[RequestReport, ...]
    verified: bool | None = None
    difference: str | None = None


def to_json(report: Report) -> str:
    """One JSON object; sizes in bytes, times in seconds."""
    body = dataclasses.asdict(report) | {"note": FOOTNOTE}
    for entry, request in zip(body["requests"], report.requests, strict=True):
        entry["hidden_share"] = request.hidden_share
    return json.dumps(body, ensure_ascii=False, indent=2)


def print_report(report: Report, console: Console) -> None:
    console.print(_table(report))
    console.print(f"Route: {report.route}", highlight=False, markup=False)
    console.print(f"{FOOTNOTE} {_ABOUT[report.model]}", style="dim", highlight=False, markup=False)
    if report.verified:
        console.print(
            "Verified: KV bytes, every step's logits and tokens equal those of a single process.",
            style="green",
        )


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, request in enumerate(report.requests, start=1):
        share, speed = request.hidden_share, request.tokens_per_second
        table.add_row(
            str(number),
            str(request.prompt_tokens),
            _size(request.kv_nbytes),
            _time(request.prefill),
            _time(request.first_token),
            _time(request.transfer),
            "-" if share is None else f"{share:.0%}",
            str(request.new_tokens),
            "-" if speed is None else f"{speed:.1f}",
        )
    return table


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"
