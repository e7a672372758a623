"""Load model files in the Keras of this interpreter, and compare their outputs with recorded ones.

usage: python load_in_keras.py LIBRARY JOBS.json RESULTS.jsonl

LIBRARY is what to import: keras, tf_keras or tensorflow.keras. JOBS.json is a list of
{"name", "path", "data", "x", "y", "again", "train", "tolerance"}: "x" and "y" begin the names of
the inputs and outputs in the npz file "data", "again" those of a second call without a reset of
states; "train" says whether the file is compiled. Each is loaded by `load_model(path)`, nothing
else, and run; a compiled one is trained for one step. One line is written for each: {"name",
"status", "detail"}, the status being "right", "wrong" or "refused".

Runs in Python 3.6 and later, and imports nothing but numpy and the library.
"""

import importlib
import json
import sys

import numpy as np

LONG = 50  # time steps from which tracing a graph is faster than eager steps


def arrays(path, prefix):
    with np.load(path) as data:
        return [data[name] for name in sorted(data.files) if name.startswith(prefix)]


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " / ".join(lines[:1] + lines[1:][-1:])
    return f"{type(error).__name__}: {text[:300]}"


def predict(keras, model, inputs):
    given = inputs if len(inputs) > 1 else inputs[0]
    longest = max([each.shape[1] for each in inputs if each.ndim > 1] or [0])
    is_keras3 = getattr(keras, "__version__", "2").startswith("3.")
    if is_keras3 and longest <= LONG:
        outputs = model(given, training=False)
    else:
        outputs = model.predict_on_batch(given)
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    if is_keras3:
        return [keras.ops.convert_to_numpy(output) for output in outputs]
    return [np.asarray(output) for output in outputs]


def worst(found, expected):
    if len(found) != len(expected):
        return float("inf")
    pairs = list(zip(found, expected))  # noqa: B905
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    differences = [np.abs(np.asarray(a, float) - np.asarray(b, float)).max() for a, b in pairs]
    return float(max(differences))


def is_compiled(model):
    return getattr(model, "optimizer", None) is not None


def work(keras, job):
    try:
        model = keras.models.load_model(job["path"])
    except Exception as error:
        return "refused", first_line(error)
    inputs = arrays(job["data"], job["x"])
    try:
        difference = worst(predict(keras, model, inputs), arrays(job["data"], job["y"]))
        again = arrays(job["data"], job["again"]) if job["again"] else []
        if again:
            difference = max(difference, worst(predict(keras, model, inputs), again))
    except Exception as error:
        return "refused", "loaded, not run: " + first_line(error)
    if not difference <= job["tolerance"]:
        return "wrong", f"by {difference:.2g}"
    if job["train"] != is_compiled(model):
        return "wrong", "compiled" if is_compiled(model) else "not compiled"
    if job["train"]:
        expected = arrays(job["data"], job["y"])
        try:
            model.train_on_batch(
                inputs if len(inputs) > 1 else inputs[0],
                expected if len(expected) > 1 else expected[0],
            )
        except Exception as error:
            return "refused", "loaded, not trained: " + first_line(error)
    return "right", f"{difference:.1e}"


def main(library, jobs, results):
    keras = importlib.import_module(library)
    with open(jobs) as file:
        todo = json.load(file)
    with open(results, "w") as file:
        for job in todo:
            status, detail = work(keras, job)
            file.write(json.dumps({"name": job["name"], "status": status, "detail": detail}) + "\n")
            file.flush()
            keras.backend.clear_session()


if __name__ == "__main__":
    main(*sys.argv[1:])
