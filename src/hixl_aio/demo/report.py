"""What a run has to show: a table for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from hixl_aio.demo.options import ModelName

__all__ = ("Report", "RequestReport", "to_json", "to_text")

_LEGEND: Final = {
    "prefill": "time spent computing",
    "first token": "from the start of prefill, after any wait for a free slot, until decode had read it",
    "transfer": "from a put's call until the event loop took its completion: includes waiting for the loop",
    "hidden": "the part of transfer during which prefill was computing, this prompt or the next",
    "per second": "tokens after the first; prefill may be using the processor at the same time",
}
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
_ENGLISH: Final = "SmolLM2-135M is an English model: other languages pass through, but their text is poor."
_TINY: Final = (
    "The tiny model has random weights: its text is noise. It computes too little for its times to mean much."
)


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One request. Times in seconds.

    Attributes:
        prefill: how long prefill computed.
        first_token: from the start of prefill until decode had read the first token. The wait for a free slot
            comes before.
        transfer: how long at least one put was under way, from its call until the event loop of prefill took
            its completion: not less than the copying took.
        hidden: how much of ``transfer`` passed while prefill was computing, this request or the next.
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
    body = dataclasses.asdict(report) | {"legend": _LEGEND, "note": _note(report)}
    for entry, request in zip(body["requests"], report.requests, strict=True):
        entry["hidden_share"] = request.hidden_share
    return json.dumps(body, ensure_ascii=False, indent=2) + "\n"


def to_text(report: Report, width: int | None = None) -> str:
    """The table and what there is to say about it, in colour where standard output shows it."""
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=sys.stdout.isatty())
    console.print(_table(report))
    console.print(f"Route: {report.route}", highlight=False, markup=False)
    console.print(_legend())
    console.print(_note(report), style="dim", highlight=False, markup=False)
    if report.verified:
        console.print(
            "Verified: KV bytes, every step's logits and tokens equal those of a single process.",
            style="green",
        )
    return text.getvalue()


def _legend() -> Table:
    table = Table.grid(padding=(0, 2))
    for name, meaning in _LEGEND.items():
        table.add_row(name, meaning, style="dim")
    return table


def _note(report: Report) -> str:
    """What to make of the figures."""
    if report.model == "tiny":
        return _TINY
    transfer = sum(request.transfer for request in report.requests)
    prefill = sum(request.prefill for request in report.requests)
    return (
        f"Within one machine transfers are short, here {100 * transfer / prefill:.1f} % of prefill: hiding "
        f"them hardly shows in the first token. It counts where the link is slow. {_ENGLISH}"
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
