"""The main job end to end: a prompt prefilled in one process, its text generated in another.

Nothing in ``hixl_aio`` imports this package; it needs the extra ``demo`` (NumPy, regex, platformdirs,
typer, rich). The command line calls :func:`hixl_aio.demo.run.run_demo`; no submodule is imported here, so
that the parent process can set ``OPENBLAS_NUM_THREADS`` before anything loads NumPy.
"""

__all__ = ()
