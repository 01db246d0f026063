"Images with exact targets, made on the fly"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .datasets import DrivingWorld, street_labels, color_labels, show_world, LayeredFlow

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'DrivingWorld': 'datasets', 'street_labels': 'datasets', 'color_labels': 'datasets',
    'show_world': 'datasets', 'LayeredFlow': 'datasets',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
