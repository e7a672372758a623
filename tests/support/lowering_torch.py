"""torch's RNNs on parameters in cuDNN's flat order: the oracle of the lowering's tests.

Written from cuDNN's documentation of the buffer; nothing of rnnconvert is in it. torch's gates have
cuDNN's order (i f g o; r z n), so its matrices go into the buffer as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

STEPS, BATCH, INPUTS, UNITS = 7, 3, 5, 4
LENGTHS = (7, 4, 2)


@dataclass
class Oracle:
    """A random RNN and random inputs; time-major, no two sizes alike.

    Attributes:
        values: by name: x, h, c, params, lengths; y, hn, cn (outputs); wy, wh, wc (what the loss
            weighs the outputs by); gx, gh, gc, gp (its gradients). With `lengths=True` the outputs
            are those of packed sequences.
    """

    mode: str
    layers: int = 1
    bidirectional: bool = False
    proj: int = 0
    skip: bool = False
    double: bool = False
    lengths: bool = False
    inputs: int = INPUTS
    seed: int = 0
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed + 17)
        if self.skip:
            self.inputs = UNITS
        module = self._module()
        parameters = self._flat_order(module)
        dtype = torch.float64 if self.double else torch.float32
        pairs = self.layers * self.directions
        leaf = {
            "x": torch.randn(STEPS, BATCH, self.inputs, dtype=dtype),
            "h": 0.5 * torch.randn(pairs, BATCH, self.proj or UNITS, dtype=dtype),
            "c": 0.5 * torch.randn(pairs, BATCH, UNITS, dtype=dtype),
        }
        for tensor in leaf.values():
            tensor.requires_grad_()
        y, hn, cn = self._run(module, leaf)
        weigh = {name: torch.randn_like(out) for name, out in (("wy", y), ("wh", hn), ("wc", cn))}
        loss = (y * weigh["wy"]).sum() + (hn * weigh["wh"]).sum()
        wanted = [leaf["x"], leaf["h"], *parameters]
        if self.mode == "lstm":
            loss = loss + (cn * weigh["wc"]).sum()
            wanted.append(leaf["c"])
        gx, gh, *rest = torch.autograd.grad(loss, wanted)
        of_parameters = rest[: len(parameters)]
        tensors = {
            **leaf, **weigh, "y": y, "hn": hn, "cn": cn, "gx": gx, "gh": gh,
            "params": torch.cat([tensor.reshape(-1) for tensor in parameters]),
            "gp": torch.cat([tensor.reshape(-1) for tensor in of_parameters]),
        }  # fmt: skip
        if self.mode == "lstm":
            tensors["gc"] = rest[-1]
        self.values = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        self.values["lengths"] = np.array(LENGTHS if self.lengths else [STEPS] * BATCH, np.int32)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def attributes(self) -> dict[str, object]:
        """Of a cuDNN op that computes this."""
        return {
            "rnn_mode": self.mode,
            "direction": "bidirectional" if self.bidirectional else "unidirectional",
            "input_mode": "skip_input" if self.skip else "linear_input",
        }

    def _module(self) -> torch.nn.Module:
        sizes = {
            "input_size": self.inputs, "hidden_size": UNITS, "num_layers": self.layers,
            "bidirectional": self.bidirectional,
        }  # fmt: skip
        if self.mode == "lstm":
            module = torch.nn.LSTM(**sizes, proj_size=self.proj)
        elif self.mode == "gru":
            module = torch.nn.GRU(**sizes)
        else:
            module = torch.nn.RNN(**sizes, nonlinearity=self.mode.removeprefix("rnn_"))
        for parameter in module.parameters():
            torch.nn.init.uniform_(parameter, -0.6, 0.6)
        if self.skip:  # no matrix at the first layer: the same as the identity for every gate
            for suffix in ("", "_reverse")[: self.directions]:
                kernel = getattr(module, f"weight_ih_l0{suffix}")
                with torch.no_grad():
                    kernel.copy_(torch.eye(UNITS).repeat(kernel.shape[0] // UNITS, 1))
        return module.double() if self.double else module

    def _flat_order(self, module: torch.nn.Module) -> list[torch.Tensor]:
        """All matrices, then all biases; each layer by layer, forward before backward."""
        matrices, biases = [], []
        for layer in range(self.layers):
            for suffix in ("", "_reverse")[: self.directions]:
                if layer or not self.skip:
                    matrices.append(getattr(module, f"weight_ih_l{layer}{suffix}"))
                matrices.append(getattr(module, f"weight_hh_l{layer}{suffix}"))
                if self.proj:
                    matrices.append(getattr(module, f"weight_hr_l{layer}{suffix}"))
                biases.append(getattr(module, f"bias_ih_l{layer}{suffix}"))
                biases.append(getattr(module, f"bias_hh_l{layer}{suffix}"))
        return matrices + biases

    def _run(self, module, leaf):  # type: ignore[no-untyped-def]
        first = (leaf["h"], leaf["c"]) if self.mode == "lstm" else leaf["h"]
        given = leaf["x"]
        if self.lengths:
            given = torch.nn.utils.rnn.pack_padded_sequence(
                given, torch.tensor(LENGTHS), enforce_sorted=False
            )
        y, last = module(given, first)
        if self.lengths:
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=STEPS)
        hn, cn = last if self.mode == "lstm" else (last, torch.zeros((), dtype=y.dtype))
        return y, hn, cn
