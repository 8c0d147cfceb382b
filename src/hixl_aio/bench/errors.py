"""What can go wrong in the bench, as types: each carries fields, pickles, and says what to do next."""

from __future__ import annotations

from hixl_aio._program.errors import ProgramError

__all__ = (
    "BenchError",
    "FileError",
    "InterruptedRunError",
    "MissingError",
    "OptionError",
    "SelectionError",
    "TargetLostError",
    "WorkloadError",
)


class BenchError(ProgramError):
    """Base of every error the bench raises on purpose."""


class TargetLostError(BenchError):
    """The second process ended before its work did. Fields: how it ended."""

    template = "the target process {0}; nothing was left behind. Run again, with HIXL_AIO_LOG=debug for more"


class MissingError(BenchError):
    """A package that an option needs is not installed. Fields: option, package, the extra that has it."""

    template = "{0} needs {1}, which is not installed; pip install 'hixl-aio[{2}]'"


class OptionError(BenchError):
    """An engine cannot have this option. Fields: what was given, what is wrong."""

    template = "--option {0}: {1}"


class WorkloadError(BenchError):
    """A workload broke. Fields: its name, the kind of error, its message."""

    template = "workload {0}: {1}: {2}; run it alone with --only '{0}'"


class SelectionError(BenchError):
    """No workload has such a name. Fields: the pattern."""

    template = "no workload matches {0!r}; --list shows all"


class FileError(BenchError):
    """A file cannot be read or written, or holds something else. Fields: path, what is wrong."""

    template = "{0}: {1}"


class InterruptedRunError(BenchError):
    """Ctrl-C, or a signal to end. Fields: what has happened."""

    template = "{0}; the target process was ended, nothing was written"
