"""One unit in the last place, relative to the value, and how much models may make of it."""

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
"""By dtype: 2 to the minus (bits of the fraction). A table: numpy by itself knows no bfloat16."""
WOBBLES = 16.0
"""How many times the effect of one rounding of every weight is taken for rounding."""
MOST = 0.01
"""No tolerance goes beyond this part of the largest output, or a wrong function could pass."""
