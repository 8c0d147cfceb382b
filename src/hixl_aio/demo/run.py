"""The parent of the demo: starts prefill and decode, streams what they say, reports. It computes nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from hixl_aio.demo.child import first_leaf
from hixl_aio.demo.errors import DemoError, HandoffError
from hixl_aio.demo.messages import (
    Connect,
    Connected,
    Generated,
    Landed,
    Listening,
    Message,
    Sent,
    Setup,
    Text,
    Trace,
)
from hixl_aio.demo.options import DemoOptions
from hixl_aio.demo.prompts import BUILT_IN
from hixl_aio.demo.report import Report, RequestReport, print_report, to_json
from hixl_aio.demo.supervise import Child, Children
from hixl_aio.demo.verify import first_difference
from hixl_aio.demo.weights import ensure

__all__ = ("DemoOptions", "run_demo")

_FAILURE: Final = 1
_INTERRUPTED: Final = 130
_TITLE: Final = 100  # characters of a prompt that head its answer
# A model may say anything: control characters other than tab and line feed must not reach the terminal.
_HARMLESS: Final = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}


def run_demo(options: DemoOptions) -> int:
    """Run the demo; returns the exit status. Messages about failures go to standard error."""
    try:
        report = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted; both processes were ended", _INTERRUPTED)
    except DemoError as error:
        return _complain(str(error), _FAILURE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it once more
        return _complain("nobody reads the output any more; both processes were ended", _FAILURE)
    if report.difference is not None:
        return _complain(f"verification failed: {report.difference}", _FAILURE)
    return 0


def _complain(message: str, status: int) -> int:
    print(f"hixl-aio demo: {message}", file=sys.stderr)
    return status


def _run(options: DemoOptions) -> Report:
    prompts = BUILT_IN if options.prompts is None else options.prompts
    path = ensure() if options.model == "smollm2" else None
    try:
        report = asyncio.run(_Run(options, prompts, path).run())
    except BaseExceptionGroup as errors:
        raise first_leaf(errors) from errors
    if options.json:
        print(to_json(report))
    else:
        print_report(report, Console())
    return report


@dataclass(slots=True)
class _Answer:
    """What has been heard of one request."""

    landed: Landed | None = None
    generated: Generated | None = None
    sent: Sent | None = None
    pieces: list[str] = field(default_factory=list)


class _Run:
    """One run: two children, what they said, and the screen."""

    def __init__(self, options: DemoOptions, prompts: tuple[str, ...], path: Path | None) -> None:
        self._options = options
        self._prompts = prompts
        self._setup = Setup(
            model=options.model,
            path=None if path is None else str(path),
            prompts=prompts,
            max_tokens=options.max_tokens,
            verify=options.verify,
            backend=options.backend,
            links=options.links,
        )
        self._answers = [_Answer() for _ in prompts]
        self._traces: list[Trace] = []
        self._route = ""
        self._screen = _Screen(prompts, quiet=options.json)

    async def run(self) -> Report:
        async with Children() as children:
            decode = await children.start("decode", "hixl_aio.demo.decode")
            prefill = await children.start("prefill", "hixl_aio.demo.prefill")
            async with asyncio.TaskGroup() as group:
                for child in (decode, prefill):
                    group.create_task(self._follow(child, prefill))
            await children.finish()
        difference = await self._compare() if self._options.verify else None
        verified = (difference is None) if self._options.verify else None
        reports = tuple(self._report(index) for index in range(len(self._prompts)))
        return Report(self._options.model, self._route, reports, verified, difference)

    async def _follow(self, child: Child, prefill: Child) -> None:
        await child.send(self._setup)
        async for message in child.messages():
            if isinstance(message, Listening):
                await prefill.send(Connect(message.address))
            else:
                self._hear(message)

    def _hear(self, message: Message) -> None:
        match message:
            case Connected(route):
                self._route = route
            case Landed(request, _, text):
                self._answers[request].landed = message
                self._say(request, text)
            case Text(request, text):
                self._say(request, text)
            case Generated(request):
                self._answers[request].generated = message
                self._screen.end(request)
            case Sent(request):
                self._answers[request].sent = message
            case Trace():
                self._traces.append(message)
            case _:
                raise HandoffError(f"{type(message).__name__} was not expected")

    def _say(self, request: int, text: str) -> None:
        self._answers[request].pieces.append(text)
        self._screen.add(request, text)

    async def _compare(self) -> str | None:
        """Run the same prompts in a single process and say where the two runs first differ."""
        if not self._options.json:
            print("Verifying against a single process ...", file=sys.stderr, flush=True)
        async with Children() as children:
            child = await children.start("verification", "hixl_aio.demo.reference")
            await child.send(self._setup)
            single = [trace async for trace in child.messages() if isinstance(trace, Trace)]
            await children.finish()
        return first_difference(self._traces, single)

    def _report(self, index: int) -> RequestReport:
        answer = self._answers[index]
        landed, generated, sent = answer.landed, answer.generated, answer.sent
        if landed is None or generated is None or sent is None:
            raise HandoffError(f"prompt {index + 1} was not reported completely")
        return RequestReport(
            prompt=self._prompts[index],
            text="".join(answer.pieces),
            stopped=generated.stopped,
            prompt_tokens=sent.prompt_tokens,
            new_tokens=len(generated.tokens),
            kv_nbytes=sent.kv_nbytes,
            prefill=sent.prefill,
            first_token=landed.at - sent.started,
            transfer=sent.transfer,
            hidden=sent.hidden,
            tokens_per_second=generated.steps / generated.seconds if generated.steps else None,
        )


class _Screen:
    """Streams answers to standard output, one after the other; what comes early waits for its turn."""

    def __init__(self, prompts: tuple[str, ...], *, quiet: bool) -> None:
        self._prompts = prompts
        self._quiet = quiet
        self._waiting = [""] * len(prompts)
        self._ended = [False] * len(prompts)
        self._current = 0
        self._open = False

    def add(self, request: int, text: str) -> None:
        self._waiting[request] += text
        self._flush()

    def end(self, request: int) -> None:
        self._ended[request] = True
        self._flush()

    def _flush(self) -> None:
        while not self._quiet and self._current < len(self._prompts):
            if not self._open and (self._waiting[self._current] or self._ended[self._current]):
                self._write(f"[{self._current + 1}/{len(self._prompts)}] {self._title(self._current)}\n")
                self._open = True
            self._write(self._waiting[self._current])
            self._waiting[self._current] = ""
            if not self._ended[self._current]:
                return
            self._write("\n\n")
            self._current, self._open = self._current + 1, False

    def _title(self, request: int) -> str:
        words = " ".join(self._prompts[request].split())
        return words if len(words) <= _TITLE else words[: _TITLE - 4] + " ..."

    def _write(self, text: str) -> None:
        if text:
            print(text.translate(_HARMLESS), end="", flush=True)
