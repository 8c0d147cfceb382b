"""What may be asked of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hixl_aio.demo.errors import PromptError

__all__ = ("DEFAULT_MAX_TOKENS", "DemoOptions", "ModelName")

ModelName = Literal["smollm2", "tiny"]
DEFAULT_MAX_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """One run of the demo.

    Attributes:
        model: the real model, or the tiny one that needs no download.
        prompts: what to ask; None for the three that are built in.
        max_tokens: how long an answer may become.
        verify: run the same prompts in one process too, and compare.
        json: print one JSON object at the end instead of text and a table.
        backend: the engines' backend.
        links: kinds of links the engines may use, in order of preference; empty: all.
    """

    model: ModelName = "smollm2"
    prompts: tuple[str, ...] | None = None
    max_tokens: int = DEFAULT_MAX_TOKENS
    verify: bool = False
    json: bool = False
    backend: str = "auto"
    links: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.prompts is not None and not self.prompts:
            raise PromptError("the options", "there is none; leave them out for those that are built in")
        if self.max_tokens < 1:
            raise PromptError("the options", f"answers of {self.max_tokens} tokens; at least 1 is needed")
