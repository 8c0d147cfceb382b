"""What can go wrong in the demo, as types: each carries fields, pickles, and says what to do next."""

from __future__ import annotations

from typing import Any

from hixl_aio._program.errors import ProgramError

__all__ = (
    "CacheError",
    "ChildError",
    "DamagedError",
    "DemoError",
    "DownloadError",
    "GgufError",
    "HandoffError",
    "LostError",
    "MissingError",
    "OutputError",
    "PromptError",
    "TokenizerError",
    "ToldError",
    "WeightsError",
    "first_leaf",
)


class DemoError(ProgramError):
    """Base of every error the demo raises on purpose."""

    @property
    def fields(self) -> tuple[Any, ...]:
        return self.args


class GgufError(DemoError):
    """The file is not a GGUF file that this reader understands. Fields: path, byte offset, what is wrong."""

    template = "{0}: at byte {1}: {2}; delete the file to fetch it again, or use --model tiny"


class TokenizerError(DemoError):
    """The vocabulary in the model file is not one that this tokenizer can drive. Fields: what is wrong."""

    template = "tokenizer: {0}; use SmolLM2-135M-Instruct or --model tiny"


class WeightsError(DemoError):
    """The weights do not fit the forward pass. Fields: tensor name, what is wrong."""

    template = "weights: {0}: {1}; use SmolLM2-135M-Instruct or --model tiny"


class DownloadError(DemoError):
    """The model could not be fetched. Fields: package, reason, where the file would be looked for."""

    template = (
        "cannot get the model from {0}: {1}. Offline? Run with --model tiny (small random weights, "
        "no download), or put the file at {2}"
    )


class CacheError(DemoError):
    """A KV cache does not fit its buffer or the work asked of it. Fields: what is wrong."""

    template = "KV cache: {0}; give it more token slots or shorten the prompt"


class DamagedError(DemoError):
    """What is read is not what was written. Fields: how it showed."""

    template = "{0}; run with --verify to see what differs first"


class PromptError(DemoError):
    """The prompts cannot be used. Fields: where they came from, what is wrong and what to do."""

    template = "prompts from {0}: {1}"


class HandoffError(DemoError):
    """What prefill announced does not describe what decode expects. Fields: what is wrong."""

    template = "hand-over: {0}; both processes must run the same version of hixl-aio"


class MissingError(DemoError):
    """A package that the demo needs is not installed. Fields: its name."""

    template = "{0} is not installed; pip install 'hixl-aio[demo]'"


class OutputError(DemoError):
    """Standard output cannot be written. Fields: what is wrong."""

    template = "standard output: {0}; all processes were ended"


class ChildError(DemoError):
    """A process of the demo ended before its work did. Fields: role, what happened."""

    template = "the {0} process {1}; the others were ended too. Run again, with HIXL_AIO_DEBUG=1 for more"


class LostError(ChildError):
    """A process of the demo gave up because another one was gone, whose own end tells more."""


class ToldError(DemoError):
    """What a child said of an error that the demo raises on purpose. Fields: its message."""


def first_leaf(error: BaseException) -> BaseException:
    """The first error inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
