"""`pdserve bench transfer`: how fast KV moves between two processes of this machine.

Every transport moves `total` bytes in blocks of each size, from this process into another one's
memory, and is set against two ceilings measured in the same run: a plain memory copy and a plain
TCP connection. CPU is the share of a core that the sending and the receiving process used.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from pd_worker.bench.endpoints import Bytes, TcpSender, make_engine, receive_tcp, serve
from pd_worker.errors import BackendUnavailable
from pd_worker.transfer.blocks import single

TransportName = Literal["shm", "mooncake", "nixl"]
MEMCPY, TCP = "memcpy", "tcp socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferBench:
    """Measure the KV transports of this machine."""

    transports: tuple[TransportName, ...] = ("shm", "mooncake")
    """Transports to measure; one that cannot run here is named and left out."""
    sizes: tuple[int, ...] = (4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
    """Block sizes in bytes. One page of SmolLM2-135M (16 tokens, all layers) is 368,640."""
    total: int = 64 << 20
    """Bytes moved in one measurement; rounded down to whole blocks."""
    repeat: int = 7
    """Measurements of each cell, after one that does not count; the median is shown."""
    host: str = "127.0.0.1"
    """Address that Mooncake and the TCP socket use."""
    json: str = "bench-transfer.json"
    """File for all numbers; empty for none."""
    plot: str = "bench-transfer.png"
    """File for a plot, where matplotlib is installed (extra `bench`); empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One transport at one block size; medians."""

    transport: str
    size: int
    gb_per_s: float
    """10^9 bytes a second."""
    us_per_block: float
    cpu_sender: float
    """Cores."""
    cpu_receiver: float


def main(options: TransferBench) -> int:
    """Measure, print a table, write the files. Returns the exit status."""
    cells: list[Cell] = []
    for name in (MEMCPY, TCP, *options.transports):
        try:
            cells += measure(name, options)
        except BackendUnavailable as error:
            print(f"{name}: left out: {error}")
    print(table(cells))
    if options.json:
        results = {"settings": asdict(options), "cells": [asdict(cell) for cell in cells]}
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")
        print(f"\nnumbers: {options.json}")
    if options.plot and write_plot(Path(options.plot), cells):
        print(f"plot: {options.plot}")
    return 0


def measure(name: str, options: TransferBench) -> list[Cell]:
    """All sizes of one transport."""
    src = np.random.default_rng(1).integers(0, 256, options.total, dtype=np.uint8)
    with _mover(name, options, src) as (move, remote_cpu):
        sizes = [size for size in options.sizes if size <= options.total]
        return [_cell(name, size, options, move, remote_cpu) for size in sizes]


Move = Callable[[int], int]
"""Move as many blocks of this size as fit; returns the bytes moved, when they have arrived."""
Cpu = Callable[[], float]
"""CPU seconds used so far by the receiving process."""


def _cell(name: str, size: int, options: TransferBench, move: Move, remote_cpu: Cpu) -> Cell:
    move(size)
    seconds, sender, receiver, nbytes = [], [], [], 0
    for _ in range(options.repeat):
        started, cpu, remote = time.perf_counter(), time.process_time(), remote_cpu()
        nbytes = move(size)
        took = time.perf_counter() - started
        seconds.append(took)
        sender.append((time.process_time() - cpu) / took)
        receiver.append((remote_cpu() - remote) / took)
    middle = statistics.median(seconds)
    return Cell(
        transport=name,
        size=size,
        gb_per_s=nbytes / middle / 1e9,
        us_per_block=middle / (nbytes // size) * 1e6,
        cpu_sender=statistics.median(sender),
        cpu_receiver=statistics.median(receiver),
    )


@contextmanager
def _mover(name: str, options: TransferBench, src: Bytes) -> Iterator[tuple[Move, Cpu]]:
    if name == MEMCPY:
        dst = np.zeros_like(src)
        yield lambda size: _copy(src, dst, size), lambda: 0.0
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    target, args = (
        (receive_tcp, (theirs, options.host))
        if name == TCP
        else (serve, (theirs, name, options.host, src.nbytes))
    )
    process = context.Process(target=target, args=args, daemon=True)
    process.start()
    theirs.close()  # so that a receiver that dies is an EOFError here, not a hang
    try:
        if name == TCP:
            with closing(TcpSender(ours.recv())) as sender:
                yield _tcp_move(sender, src), lambda: sender.remote_cpu
        else:
            yield _engine_move(ours, name, options, src), lambda: _remote_cpu(ours)
    except EOFError as error:
        raise BackendUnavailable("the receiving process has ended") from error
    finally:
        with suppress(OSError):
            ours.send("stop")
        process.join(10)


def _remote_cpu(pipe: Connection) -> float:
    pipe.send("cpu")
    used: float = pipe.recv()
    return used


def _copy(src: Bytes, dst: Bytes, size: int) -> int:
    count = src.nbytes // size
    for start in range(0, count * size, size):
        dst[start : start + size] = src[start : start + size]
    return count * size


def _tcp_move(sender: TcpSender, src: Bytes) -> Move:
    def move(size: int) -> int:
        count = src.nbytes // size
        sender.send(src.data[: count * size], size)
        return count * size

    return move


def _engine_move(pipe: Connection, name: str, options: TransferBench, src: Bytes) -> Move:
    opened = pipe.recv()
    if isinstance(opened, BackendUnavailable):
        raise opened
    session, dst = opened
    engine = make_engine(name, options.host)
    if engine.registers_source:
        engine.register(src.ctypes.data, src.nbytes)
    order = np.random.default_rng(2)

    def move(size: int) -> int:
        count = src.nbytes // size
        if count == 1:
            block = single(src.ctypes.data, dst, size)
            engine.write(session, block.src, block.dst, block.lengths)
            return size
        offsets = np.arange(count, dtype=np.int64) * size
        lengths: npt.NDArray[np.int64] = np.full_like(offsets, size)
        engine.write(session, src.ctypes.data + offsets, dst + order.permutation(offsets), lengths)
        return count * size

    return move


def table(cells: list[Cell]) -> str:
    """GB/s of every transport by block size, then the cost of the transports at the ends."""
    names = list(dict.fromkeys(cell.transport for cell in cells))
    found = {(cell.transport, cell.size): cell for cell in cells}
    lines = ["GB/s by block size", f"{'':>10}" + "".join(f"{name:>14}" for name in names)]
    for size in dict.fromkeys(cell.size for cell in cells):
        row = (found.get((name, size)) for name in names)
        shown = (f"{cell.gb_per_s:.2f}" if cell else "-" for cell in row)
        lines.append(f"{_readable(size):>10}" + "".join(f"{text:>14}" for text in shown))
    lines += ["", "µs a block, and cores busy sending + receiving"]
    for cell in cells:
        if cell.size in (cells[0].size, cells[-1].size):
            lines.append(
                f"{_readable(cell.size):>10}{cell.transport:>14}{cell.us_per_block:>14.1f}"
                f"{cell.cpu_sender:>10.2f} + {cell.cpu_receiver:.2f}"
            )
    return "\n".join(lines)


def _readable(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def write_plot(path: Path, cells: list[Cell]) -> bool:
    """A curve for each transport; False where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(cell.transport for cell in cells):
        mine = [cell for cell in cells if cell.transport == name]
        style = "--" if name in (MEMCPY, TCP) else "o-"
        axes.plot([c.size for c in mine], [c.gb_per_s for c in mine], style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="block size, bytes", ylabel="GB/s")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    return True
