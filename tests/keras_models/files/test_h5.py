"""Keras HDF5 files: what they are, and that all but the converted layers stays bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from helpers import (
    GRU_BIAS,
    LSTM_BIAS,
    LSTM_KERNEL,
    make_model_h5,
    read_config,
    replace_dataset,
    write_config,
)

import rnnconvert
from rnnconvert.errors import NotConvertibleError, UnreadableInputError
from rnnconvert.keras_models.files.h5 import MODEL, WEIGHTS, extract_weights, open_keras_h5
from rnnconvert.keras_models.planning import make_plan

ALL_FIXTURES = sorted((Path(__file__).parents[3] / "fixtures" / "keras").glob("*/*/*.h5"))
ONE_OF_EACH_CASE = list({path.parts[-2:]: path for path in ALL_FIXTURES}.values())
OPTIMIZER_FIXTURES = [path for path in ALL_FIXTURES if path.parent.name.startswith("opt_")]
REWRITTEN = {"model_config", "training_config", "rnnconvert_hard_sigmoid"}


def fixture_id(path: Path) -> str:
    return "-".join(path.with_suffix("").parts[-3:])


# --- a file, object by object, down to the bytes --------------------------------------------


def attribute_bits(file: h5py.File, owner: Any) -> dict[str, Any]:
    """Type as HDF5 encodes it, shape, and values of every attribute."""
    found = {}
    for name in owner.attrs:
        attribute = owner.attrs.get_id(name)
        value = owner.attrs[name]
        plain = repr(value) if isinstance(value, h5py.Empty) else np.asarray(value).tolist()
        found[name] = (attribute.get_type().encode(), attribute.shape, repr(plain))
    return found


def dataset_bits(data: h5py.Dataset) -> dict[str, Any]:
    """Type, shape, filters, chunking and the bytes as they are stored."""
    properties = data.id.get_create_plist()
    bits = {
        "type": data.id.get_type().encode(),
        "shape": data.shape,
        "maxshape": data.maxshape,
        "chunks": data.chunks,
        "fill": data.fillvalue if data.dtype.kind in "fiu" else None,
        "filters": [properties.get_filter(i)[:3] for i in range(properties.get_nfilters())],
    }
    if data.chunks is None:
        bits["values"] = repr(np.asarray(data[()]).tolist()) if data.shape is not None else None
    else:
        infos = [data.id.get_chunk_info(i) for i in range(data.id.get_num_chunks())]
        bits["values"] = {i.chunk_offset: data.id.read_direct_chunk(i.chunk_offset) for i in infos}
    return bits


def objects(path: Path) -> dict[str, Any]:
    """Everything in an HDF5 file, links included, by its path."""
    found: dict[str, Any] = {}

    def visit(file: h5py.File, group: h5py.Group) -> None:
        found[group.name] = ("group", attribute_bits(file, group))
        for name in group:
            link = group.get(name, getlink=True)
            place = f"{group.name.rstrip('/')}/{name}"
            if isinstance(link, h5py.SoftLink | h5py.ExternalLink):
                found[place] = ("link", link.path, getattr(link, "filename", None))
            elif isinstance(group[name], h5py.Group):
                visit(file, group[name])
            elif isinstance(group[name], h5py.Dataset):
                found[place] = (dataset_bits(group[name]), attribute_bits(file, group[name]))
            else:
                found[place] = ("type", group[name].id.encode())

    with h5py.File(path) as file:
        visit(file, file)
    return found


def without_what_may_change(found: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """Less the tensors of the report, the rewritten configs and a reported optimizer state."""
    changed = {f"/{t['target']}" for layer in report["layers"] for t in layer["tensors"]}
    rest = {name: item for name, item in found.items() if name not in changed}
    if report["optimizer"]["state"] in ("dropped", "converted"):
        rest = {name: i for name, i in rest.items() if not name.startswith("/optimizer_weights")}
    kind, attributes = rest["/"]
    kept = {name: bits for name, bits in attributes.items() if name not in REWRITTEN}
    return {**rest, "/": (kind, kept)}


def convert(source: Path, directory: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    """Convert without verification, which other tests look after."""
    target = directory / "converted.h5"
    report = rnnconvert.convert(source, target, verify="none", **options).to_dict()
    return target, report


def require_all_else_untouched(source: Path, target: Path, report: dict[str, Any]) -> None:
    before = without_what_may_change(objects(source), report)
    after = without_what_may_change(objects(target), report)
    assert list(before) == list(after)
    for name, item in before.items():
        assert item == after[name], name


@pytest.mark.parametrize("source", ONE_OF_EACH_CASE, ids=fixture_id)
@pytest.mark.sampled(6)
def test_all_else_stays_bit_for_bit(source, tmp_path):
    target, report = convert(source, tmp_path)
    if report["verdict"] == "nothing-to-convert":
        assert not target.exists()
        return
    require_all_else_untouched(source, target, report)


@pytest.mark.parametrize("source", OPTIMIZER_FIXTURES, ids=fixture_id)
@pytest.mark.sampled(4)
def test_all_else_stays_bit_for_bit_beside_optimizer_state(source, tmp_path):
    target, report = convert(source, tmp_path, target="keras2")
    assert report["optimizer"]["state"] in ("converted", "dropped")
    require_all_else_untouched(source, target, report)


def test_the_fixtures_are_there():
    assert len(ONE_OF_EACH_CASE) > 40
    assert len(OPTIMIZER_FIXTURES) > 20


def add_strangers(path: Path) -> None:
    """Groups, attributes and datasets of every kind that no Keras writes."""
    generator = np.random.default_rng(3)
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "ünïcode"
        file.attrs["fixed"] = np.bytes_(b"ascii")
        file.attrs["numbers"] = np.arange(6, dtype=">i2").reshape(2, 3)
        file.attrs["empty"] = h5py.Empty("float32")
        file.attrs["flags"] = np.array([True, False])
        file["model_weights"].attrs["trained_on"] = 3.5
        other = file.create_group("preprocessing")
        other.attrs["owner"] = b"me"
        other.create_group("nothing")
        other["words"] = np.array(["a", "ü", ""], dtype=h5py.string_dtype())
        other["fixed_words"] = np.array([b"one", b"three"])
        pair = np.dtype([("id", "<i4"), ("weight", "<f8"), ("name", "S4")])
        other["table"] = np.array([(1, 0.5, b"x"), (2, np.nan, b"y")], dtype=pair)
        other["enum"] = np.array([True, False])
        other["half"] = generator.normal(size=5).astype("float16")
        other["big"] = generator.normal(size=(3, 3)).astype(">f8")
        other["nans"] = np.array([np.nan, -0.0, np.inf])
        other["null"] = h5py.Empty("int32")
        other["scalar"] = np.uint8(7)
        other["type"] = np.dtype("int16")
        data = generator.integers(0, 9, (40, 30))
        other.create_dataset("gzip", data=data, chunks=(7, 9), compression="gzip", shuffle=True)
        other.create_dataset("lzf", data=data, chunks=(40, 1), compression="lzf")
        other.create_dataset("sum", data=data, chunks=(9, 30), fletcher32=True)
        other.create_dataset("grows", data=data, maxshape=(None, 30), fillvalue=4)
        other.create_dataset("unwritten", (5,), "float32", chunks=(2,))
        other["same"] = other["gzip"]
        other["soft"] = h5py.SoftLink("/preprocessing/gzip")
        other["dangling"] = h5py.SoftLink("/nowhere")
        other["external"] = h5py.ExternalLink("elsewhere.h5", "/x")
        file["model_weights/not_in_layer_names"] = generator.normal(size=4)


def test_unknown_groups_attributes_and_datasets_stay(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    add_strangers(model)
    target, report = convert(model, tmp_path)
    assert sum(len(layer["tensors"]) for layer in report["layers"]) == 6
    require_all_else_untouched(model, target, report)


def test_unknown_objects_stay_in_a_weights_only_file(tmp_path):
    weights = make_model_h5(tmp_path / "w.h5", whole=False)
    with h5py.File(weights, "r+") as file:
        file["extra"] = np.arange(3)
        file.attrs["note"] = "kept"
    target, report = convert(weights, tmp_path)
    require_all_else_untouched(weights, target, report)


def test_this_comparison_can_fail(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    add_strangers(model)
    target, report = convert(model, tmp_path)

    def attribute(file: h5py.File) -> None:
        file.attrs["fixed"] = "ascii"  # the same text as another type

    def recompress(file: h5py.File) -> None:
        group = file["preprocessing"]
        values = group["gzip"][()]
        del group["gzip"], group["same"]
        group.create_dataset("gzip", data=values, chunks=(8, 9), compression="gzip", shuffle=True)
        group["same"] = group["gzip"]

    def number(file: h5py.File) -> None:
        file["preprocessing/nans"][1] = 0.0  # it was -0.0

    def link(file: h5py.File) -> None:
        del file["preprocessing/dangling"]

    for damage in (attribute, recompress, number, link):
        damaged = tmp_path / f"{damage.__name__}.h5"
        shutil.copyfile(target, damaged)
        with h5py.File(damaged, "r+") as file:
            damage(file)
        with pytest.raises(AssertionError):
            require_all_else_untouched(model, damaged, report)


# --- what a file is -------------------------------------------------------------------------

NAMES = ["m.h5", "m.hdf5", "m.keras", "m.weights.h5", "m.bin", "model", "a model (2)", ".hidden"]


@pytest.mark.parametrize(
    ("name", "whole"), [*((name, True) for name in NAMES), ("m.h5", False), ("model", False)]
)
def test_the_content_decides_what_a_file_is(tmp_path, name, whole):
    path = make_model_h5(tmp_path / name, whole=whole)
    with open_keras_h5(path) as file:
        assert file.container == (MODEL if whole else WEIGHTS)
        assert list(file.groups) == ["cu_lstm", "cu_gru"]
        assert (file.keras_version, file.backend) == ("2.2.4", "tensorflow")
    assert rnnconvert.convert(path, tmp_path / "out", verify="layers").verdict == "equivalent"
    with open_keras_h5(tmp_path / "out") as file:
        assert file.container == (MODEL if whole else WEIGHTS)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("m.h5", "m.portable.h5"),
        ("m.hdf5", "m.portable.hdf5"),
        ("m.weights.h5", "m.weights.portable.h5"),
        ("m.bin", "m.bin.portable.h5"),
        ("model", "model.portable.h5"),
        ("a model v1.2", "a model v1.2.portable.h5"),
    ],
)
def test_the_default_output_stands_beside_the_input(tmp_path, name, output):
    rnnconvert.convert(make_model_h5(tmp_path / name), verify="layers")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, output])


def test_a_config_without_weights_is_no_complete_file(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        del file["model_weights"]
    with pytest.raises(UnreadableInputError, match="model_weights is missing in the file"):
        rnnconvert.convert(model, verify="layers")


def test_weights_of_a_whole_model_without_config_are_not_guessed_at(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        del file.attrs["model_config"]
    with pytest.raises(NotConvertibleError, match="the file has weights but no model_config"):
        rnnconvert.convert(model, verify="layers")


def test_a_file_without_layer_names_is_no_complete_file(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        del file["model_weights"].attrs["layer_names"]
    with pytest.raises(UnreadableInputError, match="no layer_names in the file"):
        rnnconvert.convert(model, verify="layers")


@pytest.mark.parametrize("what", ["cu_lstm", "cu_lstm/cu_lstm/bias:0"])
def test_a_missing_weight_is_named(tmp_path, what):
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        del file["model_weights"][what]
    with pytest.raises(UnreadableInputError, match="is missing in the file") as caught:
        rnnconvert.convert(model, verify="layers")
    assert what in caught.value.message


def test_keras_3_weights_files_are_refused_by_name(tmp_path):
    path = tmp_path / "m.weights.h5"
    with h5py.File(path, "w") as file:
        file["layers/lstm/cell/vars/0"] = np.ones(3)
    with (
        open_keras_h5(path) as opened,
        pytest.raises(NotConvertibleError, match=r"a Keras 3 style \.weights\.h5 file"),
    ):
        make_plan(opened)


# --- lists of names in chunks, names without ":0" -------------------------------------------


def test_chunked_names_of_a_genuine_file(fixtures_dir, tmp_path):
    source = fixtures_dir / "keras" / "k224" / "wide" / "model.h5"
    with h5py.File(source) as file:
        inner = file["model_weights/wide_inner"]
        assert {"weight_names0", "weight_names1"} <= set(inner.attrs)
        stored = [*inner.attrs["weight_names0"], *inner.attrs["weight_names1"]]
    target, report = convert(source, tmp_path)
    for path in (source, target):
        with open_keras_h5(path) as file:
            tensors = file.groups["wide_inner"]
        names = [name.decode() for name in stored]
        assert [t.path.removeprefix("model_weights/wide_inner/") for t in tensors] == names
    assert [layer["path"] for layer in report["layers"]] == [
        "model/wide_inner/wide_gru",
        "model/wide_inner/wide_lstm",
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_all_lists_in_chunks(tmp_path, whole):
    plain = make_model_h5(tmp_path / "plain.h5", whole=whole)
    chunked = tmp_path / "chunked.h5"
    shutil.copyfile(plain, chunked)
    with h5py.File(chunked, "r+") as file:
        weights = file["model_weights"] if whole else file
        for group, name in ((weights, "layer_names"), (weights["cu_lstm"], "weight_names")):
            values = group.attrs[name]
            del group.attrs[name]
            for index, value in enumerate(values):
                group.attrs[f"{name}{index}"] = [value]
    target, report = convert(chunked, tmp_path)
    require_all_else_untouched(chunked, target, report)
    other = tmp_path / "plain.out.h5"
    rnnconvert.convert(plain, other, verify="layers")
    require_same_weights(target, other)


def require_same_weights(one: Path, two: Path) -> None:
    with open_keras_h5(one) as a, open_keras_h5(two) as b:
        for name, tensors in a.groups.items():
            for first, second in zip(tensors, b.groups[name], strict=True):
                assert first.name == second.name
                assert np.array_equal(a.read(first.path), b.read(second.path))


@pytest.mark.parametrize("whole", [True, False])
def test_names_without_suffix_as_on_theano(tmp_path, whole):
    theano = make_model_h5(tmp_path / "theano.h5", suffix="", whole=whole)
    tensorflow = make_model_h5(tmp_path / "tensorflow.h5", whole=whole)
    target, report = convert(theano, tmp_path)
    prefix = "model_weights/" if whole else ""
    assert report["layers"][0]["tensors"][0]["target"] == f"{prefix}cu_lstm/cu_lstm/kernel"
    rnnconvert.convert(tensorflow, tmp_path / "other.h5", verify="layers")
    require_same_weights(target, tmp_path / "other.h5")
    require_all_else_untouched(theano, target, report)


# --- converted tensors ----------------------------------------------------------------------

STORAGES = [
    {},
    {"chunks": True},
    {"compression": "gzip", "compression_opts": 7},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"fletcher32": True},
]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_a_converted_tensor_keeps_dtype_filters_and_attributes(tmp_path, storage):
    model = make_model_h5(tmp_path / "m.h5", **storage)
    with h5py.File(model, "r+") as file:
        for name in (LSTM_BIAS, GRU_BIAS, LSTM_KERNEL):
            file[name].attrs["unit"] = "mV"
            file[name].attrs["fixed"] = np.bytes_(b"ascii")
            file[name].attrs["scale"] = np.array([1, 2], dtype=">i2")
            file[name].attrs["empty"] = h5py.Empty("float32")
            file[name].attrs["flag"] = True
    target, _ = convert(model, tmp_path)
    with h5py.File(model) as before, h5py.File(target) as after:
        assert after[LSTM_BIAS].shape == (24,)
        assert after[GRU_BIAS].shape == (2, 12)
        for name in (LSTM_BIAS, GRU_BIAS, LSTM_KERNEL):
            old, new = before[name], after[name]
            assert attribute_bits(before, old) == attribute_bits(after, new), name
            for key in ("dtype", "compression", "compression_opts", "shuffle", "fletcher32"):
                assert getattr(old, key) == getattr(new, key), (name, key)
            assert (old.chunks is None) == (new.chunks is None)


@pytest.mark.parametrize(
    ("dtype", "storage"),
    [
        ("float16", STORAGES[3]),
        ("float64", STORAGES[1]),
        (">f4", STORAGES[0]),
        (">f4", STORAGES[2]),
    ],
    ids=str,
)
def test_storage_makes_no_difference_to_the_values(tmp_path, storage, dtype):
    plain = make_model_h5(tmp_path / "plain.h5", dtype=dtype.replace(">f4", "float32"))
    stored = make_model_h5(tmp_path / "stored.h5", dtype=dtype, **storage)
    rnnconvert.convert(plain, tmp_path / "a.h5", verify="layers")
    rnnconvert.convert(stored, tmp_path / "b.h5", verify="layers")
    require_same_weights(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        assert file[LSTM_BIAS].dtype == dtype


@pytest.mark.parametrize("dtype", ["float128", "int32", "complex64"])
def test_other_number_types_are_refused(tmp_path, dtype):
    if not hasattr(np, dtype):
        pytest.skip(f"numpy has no {dtype} here")
    model = make_model_h5(tmp_path / "m.h5", dtype=dtype)
    with pytest.raises(
        NotConvertibleError, match=f"expected float16, float32 or float64, found {dtype}"
    ):
        rnnconvert.convert(model, verify="layers")


@pytest.mark.parametrize("storage", STORAGES[2:4], ids=str)
def test_a_damaged_chunk_is_the_inputs_fault(tmp_path, storage):
    model = make_model_h5(tmp_path / "m.h5", **storage)
    with h5py.File(model) as file:
        start = file[LSTM_KERNEL].id.get_chunk_info(0).byte_offset
    with model.open("r+b") as raw:
        raw.seek(start + 20)
        raw.write(b"\xa5" * 8)
    with pytest.raises(UnreadableInputError):
        rnnconvert.convert(model, verify="layers")
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


def test_optimizer_drop_always_drops(fixtures_dir, tmp_path):
    source = fixtures_dir / "keras" / "k224" / "opt_adam" / "model.h5"
    kept = tmp_path / "kept.h5"
    rnnconvert.convert(source, kept, target="keras2", verify="layers")
    target, report = convert(kept, tmp_path, target="keras2", optimizer="drop")
    assert report["optimizer"]["state"] == "dropped"
    with h5py.File(target) as file:
        assert "optimizer_weights" not in file


# --- weights alone --------------------------------------------------------------------------


@pytest.mark.parametrize("producer", ["k224", "tf215"])
@pytest.mark.parametrize("case", ["seq_lstm", "nested", "embed_bi"])
def test_extract_weights(fixtures_dir, tmp_path, producer, case):
    model = fixtures_dir / "keras" / producer / case / "model.h5"
    target = tmp_path / "w.h5"
    extract_weights(model, target)
    with open_keras_h5(model) as whole, open_keras_h5(target) as alone:
        assert (whole.container, alone.container) == (MODEL, WEIGHTS)
        assert alone.keras_version == whole.keras_version
        assert alone.backend == whole.backend
        assert list(alone.groups) == list(whole.groups)
    require_same_weights(model, target)
    with h5py.File(model) as whole, h5py.File(target) as alone:
        assert set(alone) == set(whole["model_weights"])
        assert "model_config" not in alone.attrs


@pytest.mark.parametrize("case", ["seq_lstm", "nested"])
def test_to_weights_gives_what_the_weights_file_gives(fixtures_dir, tmp_path, case):
    directory = fixtures_dir / "keras" / "tf215" / case
    rnnconvert.convert(directory / "model.h5", tmp_path / "a.h5", to="weights", verify="layers")
    rnnconvert.convert(directory / "weights.h5", tmp_path / "b.h5", verify="layers")
    require_same_weights(tmp_path / "a.h5", tmp_path / "b.h5")


@pytest.mark.parametrize(
    "link",
    [h5py.ExternalLink("secret.h5", "/cu_lstm"), h5py.SoftLink("/nowhere")],
    ids=["external", "dangling"],
)
def test_to_weights_takes_nothing_from_another_place(tmp_path, link):
    """Copying a link would copy what it leads to; the whole file may keep it as it is."""
    secret = make_model_h5(tmp_path / "secret.h5", whole=False)
    model = make_model_h5(tmp_path / "m.h5")
    with h5py.File(model, "r+") as file:
        file["model_weights/leak"] = link
    with pytest.raises(UnreadableInputError, match="/model_weights/leak is a link out of its"):
        rnnconvert.convert(model, tmp_path / "w.h5", to="weights", verify="layers")
    assert sorted(tmp_path.iterdir()) == [model, secret]
    assert rnnconvert.convert(model, verify="layers").verdict == "equivalent"


def test_no_keras_file_of_weights_alone(tmp_path):
    weights = make_model_h5(tmp_path / "w.h5", whole=False)
    with pytest.raises(NotConvertibleError, match="a weights-only file holds no architecture"):
        rnnconvert.convert(weights, to="keras", verify="layers")


# --- shapes and config that disagree --------------------------------------------------------


def test_the_config_is_confirmed_by_shapes(tmp_path):
    model = make_model_h5(tmp_path / "m.h5")
    config = read_config(model)
    config["config"]["layers"][0]["config"]["units"] = 7
    write_config(model, config)
    with pytest.raises(NotConvertibleError) as caught:
        rnnconvert.convert(model, verify="layers")
    assert caught.value.message == (
        "model/cu_lstm: recurrent_kernel: expected (7, 28), found (6, 24)"
    )


@pytest.mark.parametrize("shape", [(), (24,), (2, 3, 24)])
@pytest.mark.parametrize("kind", ["kernel", "recurrent_kernel", "bias"])
@pytest.mark.parametrize("whole", [True, False])
def test_tensors_of_any_shape_are_refused_in_words(tmp_path, shape, kind, whole):
    model = make_model_h5(tmp_path / "m.h5", whole=whole)
    prefix = "model_weights/" if whole else ""
    replace_dataset(model, f"{prefix}cu_lstm/cu_lstm/{kind}:0", np.ones(shape, "float32"))
    if not whole and (kind, shape) in (("bias", (24,)), ("recurrent_kernel", (2, 3, 24))):
        return  # weights of a plain LSTM, of a ConvLSTM1D
    with pytest.raises((NotConvertibleError, UnreadableInputError)):
        rnnconvert.convert(model, verify="layers")


def test_configs_are_ascii_strings_as_old_kerases_want_them(tmp_path):
    """Keras before 2.4, on h5py 2, decodes what it reads; a UTF-8 string has no `decode` there."""
    model = make_model_h5(tmp_path / "m.h5")
    rnnconvert.convert(model, tmp_path / "out.h5", verify="none")
    with h5py.File(tmp_path / "out.h5") as file:
        kind = h5py.h5a.open(file.id, b"model_config").get_type()
        assert kind.get_cset() == h5py.h5t.CSET_ASCII
