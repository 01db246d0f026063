"Train plain vision transformers at high resolution from two windows"
# Made by tools/nb.py from the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .windows import Windows, window_mask, free_corners, sample_windows, sample_tokens, random_sizes, crop_windows, show_windows, distance_histogram, seen_neighbours

_HOME = { # public name -> module, loaded on first use so that `import winwin` stays quick
    'Windows': 'windows', 'window_mask': 'windows', 'free_corners': 'windows', 'sample_windows': 'windows', 'sample_tokens': 'windows', 'random_sizes': 'windows', 'crop_windows': 'windows', 'show_windows': 'windows', 'distance_histogram': 'windows', 'seen_neighbours': 'windows',
}
__all__ = ['__version__', *_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module 'winwin' has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
