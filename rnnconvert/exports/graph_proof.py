"""The level `model` of an exported graph: the original with cuDNN ops by the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rnnconvert.errors import NotConvertibleError
from rnnconvert.exports.options import ExportOptions
from rnnconvert.exports.sources import Source
from rnnconvert.exports.written import Run, Written
from rnnconvert.graphs import lowering
from rnnconvert.graphs.verify.compare import BY_REFERENCE, compare_outputs, first_line
from rnnconvert.kinds import Kind
from rnnconvert.report import LevelResult

_SERVING = "serving_default"
_FURTHER = 5
"""Time steps more in the second run."""


def signature_of(directory: Path) -> tuple[str, list[str]]:
    """The signature of a SavedModel that is exported, and the others.

    Raises:
        NotConvertibleError: it has none.
    """
    graphs = list(lowering.read_saved_model(directory).meta_graphs)
    served = next((g for g in graphs if "serve" in g.meta_info_def.tags), graphs[0])
    names = sorted(name for name in served.signature_def if not name.startswith("__"))
    if not names:
        raise NotConvertibleError("the SavedModel has no signature that could be exported")
    chosen = _SERVING if _SERVING in names else names[0]
    return chosen, [name for name in names if name != chosen]


def prove_graph(
    source: Source, run: Run, written: Written, options: ExportOptions
) -> tuple[LevelResult, ...]:
    """Run the original's signature and what was written; every output is compared.

    Returns:
        A result for each pair of sizes: batch and time steps as chosen, and others where the
        original takes them.
    """
    with _reference(source) as (runner, name, precision):
        if isinstance(runner, str):
            return (LevelResult.skipped(f"the original: {runner}", "cpu"),)
        trial = _GraphTrial(runner, name, precision, run, written)
        results = [trial.result(choices) for choices in _choices(source, written, options)]
    ran = [result for result in results if result.status != "skipped"]
    return tuple(ran or results[:1])


def _choices(
    source: Source, written: Written, options: ExportOptions
) -> tuple[lowering.Choices, lowering.Choices]:
    """Of the inputs: as asked for, and another batch and length.

    Where the number of steps is fixed there are as many sequences: either axis may be that of time.
    """
    from rnnconvert.graphs.verify.verify import with_words_of_assets

    inputs, default = options.general.inputs, lowering.Choices()
    one = lowering.Choices(
        inputs.seed, inputs.batch or written.timesteps or default.batch,
        written.timesteps or inputs.timesteps or default.timesteps,
        tolerance=inputs.tolerance if inputs.asked_tolerance else None,
    )  # fmt: skip
    if source.kind is Kind.SAVED_MODEL:
        one = with_words_of_assets(one, source.original)
    if written.timesteps:
        return one, replace(one, seed=one.seed + 1)
    return one, replace(one, batch=one.batch + 1, timesteps=one.timesteps + _FURTHER,
                        seed=one.seed + 1)  # fmt: skip


@dataclass(frozen=True)
class _GraphTrial:
    """Both models, ready to run.

    Attributes:
        runner: of the original.
        name: of the signature.
        precision: the lowest of its cuDNN ops.
        run: the exported model.
    """

    runner: Any
    name: str
    precision: str
    run: Run
    written: Written

    def result(self, choices: lowering.Choices) -> LevelResult:
        """Of one run on inputs of these sizes."""
        from rnnconvert.graphs.verify.runners import first_that_runs

        outputs = self.written.outputs
        engine = f"{self.written.runtime} against {BY_REFERENCE}"
        given, wanted, error = first_that_runs([self.runner], self.name, choices)
        if wanted is None:
            text = f"the original does not run on random inputs: {error}"
            return LevelResult.skipped(text, "cpu")
        expected = {key.replace(":", "_"): value for key, value in wanted.items()}
        try:
            found = self.run([given[key] for key in self.written.inputs])
        except Exception as failure:  # each runtime has errors of its own
            detail = f"the original ran, the exported model does not: {first_line(failure)}"
            return LevelResult("failed", detail=detail, device="cpu", engine=engine)
        one = compare_outputs(
            self.name, dict(zip(outputs, found, strict=True)),
            {key: expected[key] for key in outputs}, self.precision, choices.tolerance,
        )  # fmt: skip
        sizes = ", ".join(
            f"{key} {'x'.join(str(size) for size in getattr(value, 'shape', ()))}"
            for key, value in given.items()
        )
        detail = f"signature {self.name}, {sizes}"
        return replace(one, detail=detail, device="cpu", engine=engine, seed=choices.seed)


@contextmanager
def _reference(source: Source) -> Iterator[tuple[Any, str, str]]:
    """The original that runs here, or why it does not load; its signature, lowest precision."""
    from rnnconvert.graphs.verify.originals import reference_frozen, reference_saved_model
    from rnnconvert.graphs.verify.runners import CPU, FAILURES, saved_model_runner
    from rnnconvert.graphs.verify.verify import lowest_precision

    try:
        if source.kind is Kind.GRAPH:
            graph_def = lowering.read_graph_def(source.original)
            precision = lowest_precision([graph_def])
            with reference_frozen(graph_def) as runner:
                yield runner, "graph", precision
            return
        saved_model = lowering.read_saved_model(source.original)
        name, _ = signature_of(source.original)
        served = next(g for g in saved_model.meta_graphs if name in g.signature_def)
        precision = lowest_precision([served.graph_def])
        with (
            reference_saved_model(source.original, saved_model) as folder,
            saved_model_runner(folder, served, CPU) as runner,
        ):
            yield runner, name, precision
    except FAILURES as error:
        yield first_line(error), "", ""
