"""Keras configs: reading what they say of recurrent layers, and rewriting them to load anywhere."""

from rnnconvert.keras_models.config.changes import ConfigChange
from rnnconvert.keras_models.config.inverse import port_to_cudnn
from rnnconvert.keras_models.config.port import TARGETS, Ported, port
from rnnconvert.keras_models.config.recurrent import RecurrentLayer, recurrent_layers

__all__ = [
    "TARGETS",
    "ConfigChange",
    "Ported",
    "RecurrentLayer",
    "port",
    "port_to_cudnn",
    "recurrent_layers",
]
