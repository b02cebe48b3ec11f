"""`python -m pd_operator`: run the operator, render manifests, print the CRD."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

from pd_operator.errors import OperatorError
from pd_operator.options import CrdOptions, RenderOptions, RunOptions
from pd_operator.rendering import crd, render
from pd_operator.service import run

Command = (
    Annotated[RunOptions, tyro.conf.subcommand("run")]
    | Annotated[RenderOptions, tyro.conf.subcommand("render")]
    | Annotated[CrdOptions, tyro.conf.subcommand("crd")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options: Any = tyro.cli(
        Command,
        prog="python -m pd_operator",
        args=argv,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    commands: dict[type, Callable[[Any], int]] = {
        RunOptions: run,
        RenderOptions: render,
        CrdOptions: crd,
    }
    try:
        return commands[type(options)](options)
    except OperatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
