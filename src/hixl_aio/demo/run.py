"""The parent of the demo: starts prefill and decode, streams what they say, reports. It computes nothing."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import dataclass, field
from typing import Final

from hixl_aio._program.interrupts import Interrupts
from hixl_aio.demo.errors import DemoError, HandoffError, MissingError, first_leaf
from hixl_aio.demo.messages import (
    Connect,
    Connected,
    Fetched,
    Generated,
    Landed,
    Listening,
    Message,
    Sent,
    Setup,
    Text,
    Trace,
)
from hixl_aio.demo.notices import is_watched, tell
from hixl_aio.demo.options import DemoOptions
from hixl_aio.demo.prompts import BUILT_IN
from hixl_aio.demo.report import Report, RequestReport, to_json, to_text
from hixl_aio.demo.screen import Answers, Output, standard_output
from hixl_aio.demo.supervise import Children, children
from hixl_aio.demo.verify import first_difference
from hixl_aio.demo.weights import sweep

__all__ = ("DemoOptions", "run_demo")

_FAILURE: Final = 1


def run_demo(options: DemoOptions, interrupts: Interrupts | None = None) -> int:
    """Run the demo as the whole program, in the main thread. Returns the exit status.

    Ctrl-C and signals to end are taken over for good. Messages about failures go to standard error.

    Args:
        options: what to do.
        interrupts: for a program that has taken them over already.
    """
    if interrupts is None:
        with Interrupts() as interrupts:
            return run_demo(options, interrupts)
    try:
        _check_packages()
        report = asyncio.run(_interruptible(options, interrupts))
    except asyncio.CancelledError:
        tell(f"{interrupts.words}; all processes were ended", after_key=True)
        return interrupts.status
    except DemoError as error:
        tell(str(error))
        return _FAILURE
    if report.difference is not None:
        tell(f"verification failed: {report.difference}")
        return _FAILURE
    return 0


def _check_packages() -> None:
    """What only the children import is better missed here, where it can be said in a line."""
    for package in ("numpy", "regex"):
        if importlib.util.find_spec(package) is None:
            raise MissingError(package)


async def _interruptible(options: DemoOptions, interrupts: Interrupts) -> Report:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with interrupts.cancelling(lambda: loop.call_soon_threadsafe(task.cancel)):
        try:
            async with standard_output() as output:
                return await _Run(options, output).run()
        except BaseExceptionGroup as errors:
            raise first_leaf(errors) from errors


@dataclass(slots=True)
class _Heard:
    """What has been heard of one request."""

    landed: Landed | None = None
    generated: Generated | None = None
    sent: Sent | None = None
    pieces: list[str] = field(default_factory=list)


def _answer(future: asyncio.Future[str], text: str) -> None:
    """Whoever waits for it may have been cancelled in this very turn: then nobody needs it any more."""
    if not future.done():
        future.set_result(text)


class _Run:
    """One run: two processes that work, and what they said."""

    def __init__(self, options: DemoOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._prompts = BUILT_IN if options.prompts is None else options.prompts
        self._answers = None if options.json else Answers(self._prompts, output.write)
        self._heard = [_Heard() for _ in self._prompts]
        self._path: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._route = ""
        self._traces: list[Trace] = []
        self._single: list[Trace] = []

    async def run(self) -> Report:
        setup = await self._generate()
        difference = await self._compare(setup) if self._options.verify else None
        verified = (difference is None) if self._options.verify else None
        requests = tuple(map(self._report, range(len(self._prompts))))
        report = Report(self._options.model, self._route, requests, verified, difference)
        self._output.write(to_json(report) if self._options.json else to_text(report))
        return report

    async def _generate(self) -> Setup:
        """Have the prompts prefilled in one process and answered in the other."""
        try:
            async with children() as them:
                decode = await them.start("decode", "hixl_aio.demo.decode", self._hear)
                prefill = await them.start("prefill", "hixl_aio.demo.prefill", self._hear)
                setup = await self._setup(them)
                if is_watched():
                    tell("loading the model into a prefill and a decode process ...")
                await decode.send(setup)
                await prefill.send(setup)
                await prefill.send(Connect(await self._address))
        finally:
            if self._options.model == "smollm2":
                sweep()  # a download process that was killed could not
        return setup

    async def _setup(self, them: Children) -> Setup:
        path = None
        if self._options.model == "smollm2":
            await them.start("download", "hixl_aio.demo.fetch", self._hear)
            path = await self._path
        return Setup(
            model=self._options.model,
            path=path,
            prompts=self._prompts,
            max_tokens=self._options.max_tokens,
            verify=self._options.verify,
            backend=self._options.backend,
            links=self._options.links,
        )

    async def _compare(self, setup: Setup) -> str | None:
        """Run the same prompts in a single process and say where the two runs first differ."""
        if not self._options.json:
            tell("verifying against a single process ...")
        async with children() as them:
            single = await them.start("verification", "hixl_aio.demo.reference", self._hear_single)
            await single.send(setup)
        return first_difference(self._traces, self._single)

    def _hear(self, message: Message) -> None:
        match message:
            case Fetched(path):
                _answer(self._path, path)
            case Listening(address):
                _answer(self._address, address)
            case Connected(route):
                self._route = route
            case Landed(request, _, text):
                self._heard[request].landed = message
                self._say(request, text)
            case Text(request, text):
                self._say(request, text)
            case Generated(request):
                self._heard[request].generated = message
                if self._answers is not None:
                    self._answers.end(request)
            case Sent(request):
                self._heard[request].sent = message
            case Trace():
                self._traces.append(message)
            case _:
                raise HandoffError(f"{type(message).__name__} was not expected")

    def _hear_single(self, message: Message) -> None:
        if not isinstance(message, Trace):
            raise HandoffError(f"{type(message).__name__} was not expected")
        self._single.append(message)

    def _say(self, request: int, text: str) -> None:
        self._heard[request].pieces.append(text)
        if self._answers is not None:
            self._answers.add(request, text)

    def _report(self, index: int) -> RequestReport:
        heard = self._heard[index]
        landed, generated, sent = heard.landed, heard.generated, heard.sent
        if landed is None or generated is None or sent is None:
            raise HandoffError(f"prompt {index + 1} was not reported completely")
        return RequestReport(
            prompt=self._prompts[index],
            text="".join(heard.pieces),
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
