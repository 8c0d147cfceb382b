"""The commands and their options. Heavy imports happen inside a command: `--help` needs none."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from hixl_aio import __version__

__all__ = ("app",)

app = typer.Typer(
    name="hixl-aio",
    help="Asyncio-first one-sided transfers between the memories of processes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_DEMO_HELP: Final = (
    "Without --prompt and --prompts, text that is piped or redirected into standard input is taken as "
    "prompts; where there is none (a terminal, /dev/null, a pipe that stays silent), three are built in."
)


class ModelChoice(enum.StrEnum):
    """Which model the demo runs."""

    smollm2 = "smollm2"
    tiny = "tiny"


class BackendChoice(enum.StrEnum):
    """Which backend moves the bytes."""

    auto = "auto"
    host = "host"
    hixl = "hixl"
    ucx = "ucx"


class LinkChoice(enum.StrEnum):
    """Which kinds of links may be used."""

    shm = "shm"
    cma = "cma"
    cooperative = "cooperative"


class LoopChoice(enum.StrEnum):
    """Which event loop runs."""

    asyncio = "asyncio"
    uvloop = "uvloop"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hixl-aio {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Asyncio-first one-sided transfers between the memories of processes."""


@app.command(epilog=_DEMO_HELP)
def demo(
    context: typer.Context,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", metavar="TEXT", help="A prompt; may be given several times."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="A file with one prompt a line, \\n for a line break in it; - for standard input.",
        ),
    ] = None,
    model: Annotated[
        ModelChoice,
        typer.Option(help="The real model (98 MB, fetched once), or a tiny one without download."),
    ] = ModelChoice.smollm2,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer, in tokens.")] = 64,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run the same in one process; compare tokens, KV bytes and logits."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    backend: Annotated[
        BackendChoice, typer.Option(help="Which backend moves the bytes.")
    ] = BackendChoice.auto,
    link: Annotated[
        list[LinkChoice] | None, typer.Option("--link", help="Allow this kind of link only; may be repeated.")
    ] = None,
) -> None:
    """Prefill prompts in one process, write the KV cache into another, and generate the text there."""
    if prompt and prompts is not None:
        raise typer.BadParameter("give --prompt or --prompts, not both", param_hint="--prompts")
    from hixl_aio.demo.errors import DemoError
    from hixl_aio.demo.prompts import read_prompts, waiting_prompts

    try:
        if prompts is not None:
            chosen: tuple[str, ...] | None = read_prompts(prompts)
        else:
            chosen = tuple(prompt) if prompt else waiting_prompts()
    except DemoError as error:
        fail(str(error))
    try:
        from hixl_aio.demo.run import DemoOptions, run_demo
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "hixl_aio":
            raise
        fail(f"the demo needs {error.name}, which is not installed; pip install 'hixl-aio[demo]'")
    try:
        options = DemoOptions(
            model=model.value,
            prompts=chosen,
            max_tokens=max_tokens,
            verify=verify,
            json=json,
            backend=backend.value,
            links=tuple(kind.value for kind in link or ()),
        )
    except DemoError as error:
        fail(str(error))
    raise typer.Exit(run_demo(options, context.obj))


@app.command()
def bench(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, under 30 seconds.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PATTERN",
            help="These workloads only, as put.shm or 'put.*.128B'; may be repeated.",
        ),
    ] = None,
    loop: Annotated[
        list[LoopChoice] | None,
        typer.Option("--loop", help="Run on this loop; may be repeated. Both, or asyncio with --quick."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Print the names of the workloads.")] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Write all results there.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.png", dir_okay=False, help="Draw latency and bandwidth over size."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", metavar="NAME=VALUE", help="An option of the engines on both sides; may be repeated."
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--compare",
            metavar="OLD.json NEW.json",
            help="Run nothing: print what got slower between two runs. Status 1 if anything did.",
        ),
    ] = None,
) -> None:
    """Measure transfers between two processes, each beside what the machine can do."""
    from hixl_aio.bench.main import Request, compare_command, run_command

    if compare is not None:
        raise typer.Exit(compare_command(*compare))
    request = Request(
        quick=quick,
        only=tuple(only or ()),
        loops=tuple(kind.value for kind in loop or ()),
        listing=listing,
        json=json,
        plot=plot,
        options=tuple(option or ()),
    )
    raise typer.Exit(run_command(request, context.obj))


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with status 1."""
    typer.echo(f"hixl-aio: {message}", err=True)
    raise typer.Exit(1)
