"""The inputs of a command, worked on one after another: here, in processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnconvert.cli.supervise import working_on
from rnnconvert.containers import deadline
from rnnconvert.errors import ConversionError, OutputError, UnreadableInputError, UsageError

if TYPE_CHECKING:
    from rnnconvert.cli.progress_bar import ProgressBar
    from rnnconvert.options import Options
    from rnnconvert.stores.folder import Source, Target

Outcome = Any
"""What a command found or did, or the ConversionError that came instead; None for no model."""
Pair = tuple["Source", "Target"]
"""A model, and where its output goes."""


@dataclass(frozen=True)
class Workers:
    """Who works on several inputs.

    Attributes:
        jobs: processes side by side.
        scheduler: address of a Dask cluster that does it instead; None for this machine.
    """

    jobs: int = 1
    scheduler: str | None = None

    @classmethod
    def chosen(cls, jobs: int, engine: str, scheduler: str | None) -> Workers:
        """As the options say.

        Raises:
            UsageError: they contradict each other.
        """
        if engine == "local":
            if scheduler is not None:
                raise UsageError("--scheduler goes with --engine dask")
            return cls(jobs)
        if scheduler is None:
            raise UsageError(f"--engine {engine} needs --scheduler ADDRESS")
        if jobs != 1:
            raise UsageError("--jobs is for this machine; a cluster has workers of its own")
        return cls(scheduler=scheduler)


def outcomes(
    work: Callable[[Pair], Outcome],
    pairs: Sequence[Pair],
    workers: Workers,
    bar: ProgressBar | None,
    *,
    apart: bool,
) -> Iterator[tuple[int, Outcome]]:
    """The index of each input and what became of it, in their order.

    Args:
        apart: each of several inputs may only cost itself, even if a library crashes on it.

    Raises:
        ConversionError: the cluster can't be used.
    """
    jobs = workers.jobs
    is_here = workers.scheduler is None
    if is_here and (len(pairs) == 1 or (jobs == 1 and not (apart and deadline.is_allowed()))):
        yield from _here(work, pairs, bar)
        return
    done: dict[int, Outcome] = {}
    told = 0
    try:
        for index, outcome in _elsewhere(work, pairs, workers):
            done[index] = outcome
            if bar is not None:
                bar.end(list(done))
            while told in done:
                yield told, done[told]
                told += 1
    except KeyboardInterrupt:
        for index in sorted(index for index in done if index >= told):
            yield index, done[index]
        raise


def _here(
    work: Callable[[Pair], Outcome], pairs: Sequence[Pair], bar: ProgressBar | None
) -> Iterator[tuple[int, Outcome]]:
    for index, pair in enumerate(pairs):
        working_on(pair[0])
        if bar is not None:
            bar.begin(pair[0].name)
        outcome = work(pair)
        if bar is not None:
            bar.end(range(index + 1))
        yield index, outcome


def _elsewhere(
    work: Callable[[Pair], Outcome], pairs: Sequence[Pair], workers: Workers
) -> Iterator[tuple[int, Outcome]]:
    """As they end; of a process that died an error."""
    from rnnconvert.cli.workers import Died, in_workers

    if workers.scheduler is not None:
        from rnnconvert.cli.cluster import on_cluster

        ended = on_cluster(work, pairs, workers.scheduler)
    else:
        ended = in_workers(work, pairs, min(workers.jobs, len(pairs)))
    for index, outcome in ended:
        if isinstance(outcome, Died):
            outcome = UnreadableInputError(str(outcome))
        if isinstance(outcome, ConversionError):
            outcome.path = outcome.path or str(pairs[index][0])
        yield index, outcome


@contextmanager
def seeming_models(*, apart: bool) -> Iterator[Callable[[Path], bool]]:
    """`kinds.seems_model`; of HDF5 files in a process that a damaged one may end.

    Such a file counts as a model: who works on it tells what is wrong.
    """
    from rnnconvert.kinds import seems_model

    if not (apart and deadline.is_allowed()):
        yield seems_model
        return
    from rnnconvert.cli.workers import Died, KeptWorker
    from rnnconvert.containers.sniff import is_hdf5

    worker = KeptWorker(_seems)

    def seems(path: Path) -> bool:
        if not is_hdf5(path):
            return seems_model(path)
        found = worker.call(path, lambda: True)
        return True if isinstance(found, Died) else bool(found)

    try:
        yield seems
    finally:
        worker.stop()


def _seems(path: Path) -> bool:
    from rnnconvert.kinds import seems_model

    try:
        return seems_model(path)
    except ConversionError:
        return True


def inspect_one(pair: Pair, options: Options) -> Outcome:
    """What is in a model."""
    from rnnconvert.commands.inspect import inspect_path
    from rnnconvert.stores.work import NotAModel, on_models

    try:
        return on_models(lambda path: inspect_path(path, options), [pair[0]])
    except NotAModel:
        return None
    except ConversionError as error:
        return error


def convert_one(pair: Pair, options: Options, *, again: bool = False) -> Outcome:
    """What a model became.

    Args:
        again: an earlier attempt may have written the output, and was killed then.
    """
    from rnnconvert.commands import convert as conversion
    from rnnconvert.verification.frameworks import number_names_anew

    number_names_anew()
    source, target = pair
    try:
        if isinstance(source, Path) and (target is None or isinstance(target, Path)):
            return conversion.convert_path(source, target, options)
        from rnnconvert.stores.work import NotAModel, convert_placed

        try:
            return convert_placed(source, target, options)
        except NotAModel:
            return None
    except OutputError as error:
        if not again:
            return error
        from rnnconvert.stores.again import made_before

        return made_before(source, target, options) or error
    except ConversionError as error:
        return error
