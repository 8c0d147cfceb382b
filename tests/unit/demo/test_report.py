"""The table and the JSON."""

from __future__ import annotations

import json

from hixl_aio.demo.report import Report, RequestReport, to_json, to_text

REQUEST = RequestReport(
    prompt="Why\n[bold]is[/bold] it?",
    text="Because.",
    stopped=True,
    prompt_tokens=424,
    new_tokens=64,
    kv_nbytes=19_537_920,
    prefill=1.4142,
    first_token=1.5,
    transfer=0.02,
    hidden=0.015,
    tokens_per_second=21.4,
)
EMPTY = RequestReport("x", "", True, 1, 0, 0, 0.0001, 0.0002, 0.0, 0.0, None)


def test_table_fits_80_columns() -> None:
    """Every figure is shown whole in 80 columns, with the route and what each time means."""
    text = to_text(Report("smollm2", "shm (both on this host)", (REQUEST, EMPTY)), width=80)
    for figure in (
        "424",
        "19.5 MB",
        "1.41 s",
        "1.50 s",
        "20.0 ms",
        "75%",
        "64",
        "21.4",
        "shm (both on this host)",
    ):
        assert figure in text
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "here 1.4 % of prefill" in " ".join(text.split())
    assert "includes waiting for the loop" in " ".join(text.split())
    assert "English model" in text
    assert "Verified" not in text


def test_verification_is_said() -> None:
    """A run that was compared and found equal says so."""
    assert "Verified" in to_text(Report("tiny", "shm", (REQUEST,), verified=True))


def test_json() -> None:
    """The JSON has every figure unrounded, and null where there is none."""
    body = json.loads(to_json(Report("tiny", "shm", (REQUEST, EMPTY), verified=True)))
    assert body["model"] == "tiny"
    assert body["verified"] is True
    assert body["difference"] is None
    assert body["requests"][0]["kv_nbytes"] == 19_537_920
    assert body["requests"][0]["hidden_share"] == 0.75
    assert body["requests"][0]["prompt"] == REQUEST.prompt
    assert body["requests"][1]["hidden_share"] is None
    assert body["requests"][1]["tokens_per_second"] is None
    assert "random weights" in body["note"]
    assert "transfer" in body["legend"]
