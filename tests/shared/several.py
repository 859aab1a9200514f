"""Several processes of one test. They run functions one after the other, and the results of process 0 come back."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import runpy
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import distributed

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Seconds that one process waits for another, and that all of them have.
WAIT, LIMIT = 30, 150
#: A function of a module, its arguments behind (rank, world), and those by name.
Job = Tuple[Callable[..., Any], Tuple[Any, ...], Dict[str, Any]]


def run(folder: Path, world: int, jobs: Dict[str, Job]) -> Dict[str, Any]:
    """The results of process 0 by name; where any process raised, its traceback as a text."""
    # forks of one process that has torch, where spawned ones would all import it
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.pipelining"])
    started = [context.Process(target=_work, args=(rank, world, folder, jobs), daemon=True) for rank in range(world)]
    for one in started:
        one.start()
    for one in started:
        one.join(LIMIT)
    for one in started:
        one.kill()
    found: Dict[str, Any] = {}
    for rank in range(world):
        path = folder / f"results-{rank}"
        of_rank = torch.load(str(path)) if path.exists() else dict.fromkeys(jobs, f"process {rank} did not end")
        for name, result in of_rank.items():
            if rank == 0 or (isinstance(result, str) and not isinstance(found[name], str)):
                found[name] = result
    return found


def _work(rank: int, world: int, folder: Path, jobs: Dict[str, Job]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
    torch.set_num_threads(1)
    if sys.platform == "linux":
        # not by the name of the machine, which may lead to a network that nobody answers in
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("ignore")  # torch's about torch
    found: Dict[str, Any] = {}
    for name, (job, args, named) in jobs.items():
        try:
            found[name] = job(rank, world, *args, **named)
        except BaseException:
            found[name] = traceback.format_exc()
        if distributed.is_initialized():
            distributed.destroy_process_group()
    torch.save(found, str(folder / f"results-{rank}"))


@contextlib.contextmanager
def group(rank: int, world: int, store: str) -> Any:
    """A process group that meets in a file."""
    patience = datetime.timedelta(seconds=WAIT)
    distributed.init_process_group("gloo", f"file://{store}", patience, world, rank)
    yield
    distributed.barrier()
    distributed.destroy_process_group()


def rendezvous(count: int) -> List[distributed.TCPStore]:
    """Where the processes of a program meet: servers of this process, whose ports nobody can take meanwhile."""
    return [distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False) for _ in range(count)]


def program(rank: int, world: int, port: int, signals: Dict[int, Tuple[int, int]], name: str, *args: str) -> Any:
    """A training program as torchrun starts it: its output and exit code. ``signals``: rank -> (batch, signal)."""
    names: Dict[str, Any] = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    names.update(TORCHELASTIC_USE_AGENT_STORE=True, TORCHELASTIC_RESTART_COUNT=0)  # the server is there already
    os.environ.update({key: str(value) for key, value in names.items()})
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    from common import processes

    class Bar:
        """In the place of the progress bar, which hears of every batch."""

        def __init__(self, total: int, initial: int, unit: str, disable: bool) -> None:
            self.done = initial

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def set_postfix(self, **_: Any) -> None:
            pass

        def update(self) -> None:
            self.done += 1
            at, number = signals.get(rank, (0, 0))
            if self.done == at:
                os.kill(os.getpid(), number)

    processes.tqdm = Bar
    sys.argv = [name, *args]
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            code = end.code
    return {"code": code, "said": said.getvalue()}
