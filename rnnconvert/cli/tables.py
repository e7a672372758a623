"""Tables and sentences of the commands' output, made safe to print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape

if TYPE_CHECKING:
    from rnnconvert.keras_models.plan import Plan, SiteChange
    from rnnconvert.report import LevelResult, Report


def printable(text: object) -> str:
    """Text from a model file, made safe to print: no control characters, no markup."""
    clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
    return escape(clean)


def target_class(change: SiteChange) -> str:
    site = change.site
    if change.target_layout != site.layout:
        return class_of(change.target_layout, site.cell)
    return f"{site.class_name} rescaled"


def class_of(layout: str, cell: str) -> str:
    """The Keras class that stores `cell` in `layout`."""
    if layout == "keras-cudnn":
        return f"CuDNN{cell.upper()}"
    return {
        "lstm": "LSTM",
        "gru": "GRU(reset_after)",
        "gru_reset_before": "GRU",
        "conv_lstm": "ConvLSTM",
    }.get(cell, "SimpleRNN")


def weights_formula(change: SiteChange) -> str:
    """The count by formula: gates x units x (inputs + units + biases)."""
    site = change.site
    if site.cell in ("conv_lstm", "linear") or not site.units:
        return ""
    from rnnconvert.layouts import CELLS

    gates = len(CELLS[site.cell].gates)
    per_gate = gates * site.units

    def biases(layout: str) -> int:
        return site.parameters_as(layout) // per_gate - site.input_dim - site.units

    here, there = biases(site.layout), biases(change.target_layout)
    shown = f"{here}" if here == there else f"{here}->{there}"
    return f"{gates}*{site.units}*({site.input_dim}+{site.units}+{shown})"


def file_line(info: Any) -> str:
    kind = {
        "keras-h5-model": "Keras HDF5, whole model",
        "keras-h5-weights": "Keras HDF5, weights",
        "keras": ".keras file",
        "keras-weights": ".weights.h5 file",
        "tf-checkpoint-v1": "TensorFlow checkpoint V1",
        "tf-checkpoint-v2": "TensorFlow checkpoint V2",
        "npz": "numpy .npz",
        "savedmodel": "TensorFlow SavedModel",
        "frozen-graph": "TensorFlow frozen graph",
        "meta-graph": "TensorFlow MetaGraph with its checkpoint",
    }
    version = f", Keras {printable(info.keras_version)}" if info.keras_version else ""
    return f"{kind.get(info.container, info.container)}{version}, {info.bytes:,} bytes"


def level_line(name: str, level: LevelResult) -> str:
    if level.device == "gpu" or name == "model":
        name = f"{name} ({level.device})" if level.device else name
    if level.status == "skipped":
        return f"[yellow]-[/] {name}: skipped, {printable(level.reason)}"
    mark = "[green]ok[/]" if level.status == "passed" else "[red]FAILED[/]"
    text = f"{mark} {name}: "
    if level.max_abs is not None:
        text += f"max difference {level.max_abs:.2g} (tolerance {level.tolerance:.2g}), "
    engine = f", {level.engine}" if level.engine else ""
    told = ": ".join(part for part in (level.detail, level.reason) if part)
    return text + printable(told + engine)


def loads(report: Report, kind: str) -> str:
    """How far it is known that Keras 3 loads a file that needs nothing."""
    if kind != "layers" or report.command != "cudnn-to-keras" or not report.model_level:
        return ""
    level = report.model_level[0]
    if level.status == "passed":
        return f", and {printable(level.engine)} loads it as it is"
    if report.input.container in ("keras-h5-weights", "keras-weights"):
        must = " (see what it must give)" if report.warnings else ""
        return f"; only weights, for the code that builds the model{must}"
    return f"; that Keras 3 loads it is {printable(level.reason)}"


def export_lines(written: Any) -> list[str]:
    """What was written for another runtime: operators, versions, inputs and outputs."""
    versions = ", ".join(f"{name} {value}" for name, value in written.versions.items())
    counts = ", ".join(f"{count} {name}" for name, count in written.operators.items())
    lines = [f"{written.files[0]}: {versions}"] if versions else [written.files[0]]
    if counts:
        lines.append(f"operators: {counts}")
    lines += [f"not a native operator: {reason}" for reason in written.loops]
    lines.append(f"inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}")
    return [printable(line) for line in lines]


def conclusion(report: Report) -> str:
    """The verdict, and how deep it was proved."""
    if not report.is_equivalent:
        return printable(report.verdict)
    return printable(f"{report.verdict} ({report.depth})")


def verdict_line(plan: Plan) -> str:
    if plan.problems:
        listed = "\n    ".join(printable(problem) for problem in plan.problems)
        return f"[red]can't be converted:[/]\n    {listed}"
    if plan.is_empty:
        return "nothing to convert"
    cudnn = sum(change.site.is_cudnn for change in plan.sites)
    parts = []
    if cudnn:
        parts.append(f"{cudnn} CuDNN layers to convert")
    scaled = sum(bool(c.changes) and not c.site.is_cudnn for c in plan.sites)
    scaled += len(plan.rescaled)
    if scaled:
        parts.append(f"{scaled} hard_sigmoid layers to rescale")
    if plan.config_changes:
        parts.append(f"{len(plan.config_changes)} config repairs (-v lists them)")
    return f"[green]convertible:[/] {', '.join(parts)}"
