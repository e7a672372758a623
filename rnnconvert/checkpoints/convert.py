"""TensorFlow checkpoints: find the stacks, convert, write, verify, publish.

One Keras model or its weights per RNN stack (`--to h5|keras|weights`), arrays in Keras' layout
(`--to npz`), or a checkpoint with canonical tensors instead of cuDNN's buffers (`--to checkpoint`).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rnnconvert.checkpoints.inspect import (
    assumptions_of,
    describe_checkpoint,
    open_stacks,
    stack_layers,
)
from rnnconvert.checkpoints.load import load_slot, load_weights
from rnnconvert.checkpoints.problems import for_the_code, problems_of
from rnnconvert.checkpoints.rewrite import (
    RewrittenVariables,
    rewrite_inverse,
    rewrite_variables,
    target_places,
)
from rnnconvert.checkpoints.stack import Stack, StackSlot
from rnnconvert.checkpoints.streamed_levels import (
    StreamedLevels,
    WrittenPlaces,
    check_levels,
    check_slots,
)
from rnnconvert.checkpoints.streams import StreamedWeights, streamed, streams_of
from rnnconvert.checkpoints.verify import (
    Run,
    adds_up_biases,
    check_stack_layers,
    check_stack_model,
    check_stack_weights,
    largest_bias,
    run_source,
    run_written,
)
from rnnconvert.checkpoints.written import (
    find_again,
    read_stack,
    streamed_model,
    streamed_npz,
    write_model,
    write_npz,
    write_weights,
)
from rnnconvert.containers.checkpoint import (
    Checkpoint,
    data_path,
    index_path,
    open_checkpoint,
    write_checkpoint,
)
from rnnconvert.containers.graph_def import graph_path
from rnnconvert.errors import NotConvertibleError, UsageError
from rnnconvert.kinds import EXTENSIONS
from rnnconvert.layouts import RnnWeights
from rnnconvert.options import Options
from rnnconvert.outputs import Footprint, check_output, refuse_overlap
from rnnconvert.progress import counted_off, tell
from rnnconvert.publish import publish_together, scratch_directory, temporary_file, write_errors
from rnnconvert.report import NOTHING_WRITTEN, FileInfo, LevelResult, OptimizerRecord, Report
from rnnconvert.verification.devices import find_gpu
from rnnconvert.verification.frameworks import CannotRun, import_keras

_Written = Sequence[list[RnnWeights] | StreamedLevels]
_MODELS = ("h5", "keras", "weights")
"""Containers that hold one stack each."""


def convert_checkpoint(source: Path, output: Path | None, options: Options) -> Report:
    """Convert one checkpoint. A ConversionError carries a partial report, if there is one.

    Args:
        options: with its `to` decided.

    Raises:
        ConversionError: a subclass for each exit code; see `errors`.
    """
    checkpoint, found = open_stacks(source, options)
    to = options.to
    layout = "tf1" if to == "checkpoint" and options.names == "tf1" else "keras"
    layout = "cudnn-opaque" if options.is_inverse else layout
    report = Report(
        options.command,
        describe_checkpoint(source, checkpoint, options.hashes),
        layers=stack_layers(found, layout),
        warnings=found.warnings,
        assumptions=assumptions_of(found),
        problems=found.problems,
    )
    problems = problems_of(checkpoint, found, options)
    if problems:
        error = NotConvertibleError("; ".join(problems), problems=problems)
        raise error.with_report(replace(report, problems=problems, verdict="not-convertible"))
    needs_work = any(stack.is_cudnn != options.is_inverse for stack in found.stacks)
    if to == "checkpoint" and not needs_work and options.names == "tf1":
        return replace(report, verdict="nothing-to-convert", assumptions=())
    if options.check:
        return report
    report = replace(report, warnings=(*report.warnings, *for_the_code(found.stacks, options)))
    job = _Job(checkpoint, found.stacks, options)
    return job.write(report, job.output_path(output))


def checkpoint_footprint(source: Path, output: Path | None, options: Options) -> Footprint:
    """What `run` would read and write; options with their `to` decided."""
    checkpoint, found = open_stacks(source, options)
    job = _Job(checkpoint, found.stacks, options)
    return Footprint(job.reads, tuple(job.targets(job.output_path(output))))


# --- writing --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """One conversion: what is converted, and to what."""

    checkpoint: Checkpoint
    stacks: Sequence[Stack]
    options: Options

    @property
    def to(self) -> str:
        assert self.options.to is not None
        return self.options.to

    @property
    def reads(self) -> tuple[Path, ...]:
        """The files of the input; its graph, if it is there, tells of the stacks."""
        prefix = self.checkpoint.path.prefix
        graph = graph_path(prefix) or prefix.with_name(f"{prefix.name}.meta")
        return (*self.checkpoint.files, graph)

    @cached_property
    def streams(self) -> list[tuple[StreamedWeights, ...]]:
        """Of each stack, where all can be converted without being in memory; else empty."""
        return streams_of(self.stacks, self.checkpoint, self.options)

    @cached_property
    def weights(self) -> list[tuple[RnnWeights, ...]]:
        """Of each stack, as read from the checkpoint."""
        stacks = counted_off(self.stacks, "reading", "stacks")
        return [load_weights(stack, self.checkpoint) for stack in stacks]

    @property
    def extension(self) -> str:
        return ".weights.h5" if self.to == "weights" else f".{self.to}"

    def output_path(self, output: Path | None) -> Path:
        """Where to write; of a checkpoint the prefix, of several models the directory."""
        several = self.to in _MODELS and len(self.stacks) > 1
        extension = "" if several or self.to == "checkpoint" else self.extension
        prefix = self.checkpoint.path.prefix
        name = f"{prefix.name}{self.options.suffix}{extension}"
        if output is None:
            return prefix.with_name(name)
        if output.is_dir() and not several:
            return output / name
        if several and output.suffix in EXTENSIONS:
            raise UsageError(
                f"{len(self.stacks)} RNN stacks ({', '.join(s.scope for s in self.stacks)}) become "
                f"as many models: give a directory as output, or pick one with --scope",
                path=str(output),
            )
        return output

    def write(self, report: Report, output: Path) -> Report:
        """Write beside the output, verify what was written, publish.

        Raises:
            DifferenceError: a level failed; nothing is left.
        """
        targets = self.targets(output)
        for target in targets:
            self._check_output(target)
        with ExitStack() as stack:
            folder = scratch_directory() if self.options.dry_run else targets[0].parent
            if not folder.exists():
                folder = folder.parent
            suffix = ".tmp" if self.to == "checkpoint" else self.extension
            temporaries = [stack.enter_context(temporary_file(folder, suffix)) for _ in targets]
            with write_errors(output):
                written, rewritten = self._fill(temporaries)
            report = self._verify(report, written, temporaries)
            if self.options.strict:
                report.raise_if_in_doubt(NOTHING_WRITTEN, gpu=self.options.device == "gpu")
            report = replace(report, optimizer=_optimizer(rewritten))
            info = self._output_info(output, temporaries)
            if self.options.dry_run:
                return report
            with write_errors(output):
                targets[0].parent.mkdir(exist_ok=True)
            # The index comes last: without it no half-written checkpoint is seen.
            publish_together(list(zip(temporaries, targets, strict=True))[::-1])
        return replace(report, output=info)

    def targets(self, output: Path) -> list[Path]:
        if self.to == "checkpoint":
            return [index_path(output), data_path(output)]
        if self.to in _MODELS and len(self.stacks) > 1:
            names = [re.sub(r"[^\w.-]+", ".", stack.scope) for stack in self.stacks]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                scopes = [s.scope for s, name in zip(self.stacks, names, strict=True)
                          if name == twice[0]]  # fmt: skip
                raise UsageError(
                    f"the stacks {' and '.join(scopes)} would both be written as "
                    f"{twice[0]}{self.extension}; pick one with --scope"
                )
            return [output / f"{name}{self.extension}" for name in names]
        return [output]

    def _check_output(self, target: Path) -> None:
        if not target.parent.exists() and target.parent.parent.is_dir():
            return  # the directory of several models, which is made at the end
        refuse_overlap(self.reads, target)
        force = self.options.force or self.options.dry_run
        own = self.checkpoint.path.tables[0]
        check_output(own, target, force=force, in_place=False)

    def _fill(self, files: list[Path]) -> tuple[_Written, RewrittenVariables | None]:
        """Write all files; returns each stack's weights as read back, and the slots' fate.

        Of streamed stacks, which are never in memory, the levels' results.
        """
        if self.to == "checkpoint":
            return self._fill_checkpoint(*files)
        if self.streams:
            return self._fill_streamed(files), None
        if self.to == "npz":
            return write_npz(files[0], self.stacks, self.weights), None
        jobs = zip(self.stacks, self.weights, files, strict=True)
        if self.to == "weights":
            return [write_weights(*job) for job in jobs], None
        return [write_model(*job, self.to) for job in jobs], None

    def _fill_streamed(self, files: list[Path]) -> list[StreamedLevels]:
        if self.to == "npz":
            with streamed_npz(files[0], self.stacks, self.streams) as places:
                return self._check(places)
        found = []
        for number, file in enumerate(files):
            stack, weights = self.stacks[number], self.streams[number]
            with streamed_model(stack, weights, file, self.to) as written:
                found += self._check([written], number)
        return found

    def _check(self, written: Sequence[WrittenPlaces], first: int = 0) -> list[StreamedLevels]:
        """The levels of streamed stacks from number `first` on, if any is asked for."""
        if self.options.verify == "none":
            return []
        names = self.options.names if self.to == "checkpoint" else "keras"
        return [
            check_levels(stack, self.streams[number], own, self.checkpoint, self.options,
                         adds_up=adds_up_biases(stack, names))
            for number, own in enumerate(written, first)
            for stack in [self.stacks[number]]
        ]  # fmt: skip

    def _fill_checkpoint(self, index: Path, data: Path) -> tuple[_Written, RewrittenVariables]:
        if self.options.is_inverse:
            rewritten = rewrite_inverse(self.stacks, self.weights)
        else:
            rewritten = rewrite_variables(
                self.stacks,
                self.streams or self.weights,
                self.checkpoint,
                self.options.names,
                self._read_slot if self.options.optimizer == "convert" else None,
            )
        tensors: dict[str, Any] = {
            name: self.checkpoint.source(name)
            for name in self.checkpoint.variables
            if name not in rewritten.replaced
        }
        clash = sorted(set(tensors) & set(rewritten.tensors))
        if clash:
            raise NotConvertibleError(f"the checkpoint has a variable {clash[0]} already")
        write_checkpoint(index, data, {**tensors, **rewritten.tensors})
        # Read back under the names that TensorFlow wants.
        with tempfile.TemporaryDirectory(prefix=".rnnconvert-") as folder:
            prefix = Path(folder) / "read"
            index_path(prefix).symlink_to(index.absolute())
            data_path(prefix).symlink_to(data.absolute())
            again = open_checkpoint(prefix)
            if self.options.is_inverse:
                return find_again(self.stacks, again), rewritten
            if self.streams:
                checked = self._check([
                    WrittenPlaces(target_places(stack, self.options.names), again.rows, again.read,
                                  is_copied=rewritten.replaced.isdisjoint(stack.variables))
                    for stack in self.stacks
                ])  # fmt: skip
                slots = [StreamedLevels(each, None) for each in check_slots(rewritten.slots)]
                return [*slots, *checked], rewritten
            written = [read_stack(stack, self.options.names, again.read) for stack in self.stacks]
        return written, rewritten

    def _read_slot(self, stack: Stack, slot: StackSlot) -> Sequence[RnnWeights | StreamedWeights]:
        """A slot of a buffer, cut as the buffer is; not in memory where the buffer is not."""
        own = streamed(stack, slot.variable, self.checkpoint) if self.streams else None
        return own or [each.weights() for each in load_slot(stack, slot, self.checkpoint)]

    # --- verification -----------------------------------------------------------------------

    def _verify(self, report: Report, written: _Written, files: list[Path]) -> Report:
        options = self.options
        asked = LevelResult.not_asked(options.verify)
        if options.verify == "none":
            return replace(report, weights_level=asked, layers_level=asked,
                           model_level=(asked,), verdict="unverified")  # fmt: skip
        layers, models = [asked], [asked]
        streamed = [each for each in written if isinstance(each, StreamedLevels)]
        read_back = [each for each in written if not isinstance(each, StreamedLevels)]
        weights = [each.weights for each in streamed]
        if read_back:
            weights = [
                check_stack_weights(stack, source, own, self.checkpoint)
                for stack, source, own in zip(self.stacks, self.weights, read_back, strict=True)
            ]
        if options.verify in ("layers", "model"):
            read = self.checkpoint.rows if streamed else self.checkpoint.read
            runs = [run_source(stack, read) for stack in self.stacks]
            if streamed:
                layers = [each.layers for each in streamed if each.layers is not None] or layers
            else:
                names = options.names if self.to == "checkpoint" else "keras"
                layers = [
                    check_stack_layers(
                        stack, run, partial(run_written, stack, own), options.inputs,
                        rounded=largest_bias(own) if adds_up_biases(stack, names) else None,
                    )
                    for stack, run, own in zip(
                        counted_off(self.stacks, "proving layers", "stacks"), runs, read_back,
                        strict=True,
                    )
                ]  # fmt: skip
            if options.verify == "model":
                tell("running the models in Keras")
                models = self._run_models(runs, files)
        report = replace(
            report,
            weights_level=LevelResult.of_all(weights),
            layers_level=LevelResult.of_all(layers),
            model_level=tuple(models),
            verdict="equivalent",
        )
        report.raise_if_different(NOTHING_WRITTEN)
        return report

    def _run_models(self, sources: Sequence[Run], files: list[Path]) -> list[LevelResult]:
        if self.to not in ("h5", "keras"):
            reason = f"--to {self.to} holds no Keras model; --to keras makes one that can be run"
            return [LevelResult.nothing_to_run(reason, "cpu")]
        try:
            import_keras()
        except CannotRun as error:
            return [LevelResult.skipped(str(error), "cpu")]
        gpu = find_gpu() if self.options.device != "cpu" else None
        on_gpu = gpu is not None and gpu.engine == "keras"
        checked = [
            check_stack_model(stack, source, file, self.options.inputs, device)
            for device in (("cpu", "gpu") if on_gpu else ("cpu",))
            for stack, source, file in zip(self.stacks, sources, files, strict=True)
        ]
        if gpu is None or on_gpu:
            return checked
        reason = gpu.looked_for if gpu.engine is None else "only torch sees a GPU, Keras does not"
        return [*checked, LevelResult.skipped(reason, "gpu")]

    def _output_info(self, output: Path, files: list[Path]) -> FileInfo:
        kinds = {
            "checkpoint": "tf-checkpoint-v2", "h5": "keras-h5-model", "weights": "keras-weights",
        }  # fmt: skip
        kind = kinds.get(self.to, self.to)
        return FileInfo.of(output, kind, with_hash=self.options.hashes, files=files)


def _optimizer(rewritten: RewrittenVariables | None) -> OptimizerRecord:
    if rewritten is None:
        return OptimizerRecord()
    return OptimizerRecord(rewritten.slot_state, tuple(dict.fromkeys(rewritten.notes)))
