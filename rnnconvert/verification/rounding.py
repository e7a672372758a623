"""One unit in the last place, relative to the value: 2 to the minus (bits of the fraction)."""

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""By dtype. A table, since numpy by itself knows no bfloat16."""
