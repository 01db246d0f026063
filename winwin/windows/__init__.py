"Which tokens the model sees"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .layout import Windows, tokens_of, brief, as_size, as_sizes, window_mask, stack_windows
    from .layout import crop_windows, pack_windows, as_packed, rgb_picture, show_windows
    from .sampling import free_corners, sample_windows, sample_tokens, random_sizes
    from .sampling import distance_histogram, seen_neighbours
    from .schemes import Scheme, parse_scheme, scheme_coverage, scheme_of, usual_windows
    from .tokens import patch_view, patchify, unpatchify, pad_to_patches, unpad, gather_tokens
    from .tokens import scatter_tokens, PatchEmbed, check_windows
    from .guidance import guide_methods, bin_flow, perturb_map, best_windows, guide_windows
    from .guidance import match_coverage, show_guidance, Guidance, guide_once
    from .canvas import refine_windows, paste_windows, cell_places, square_offsets, sample_at
    from .canvas import warp_window, lookup, correlate, neighbours
    from .lazy import LazyMap, LazyBatch, stack_maps, read_maps, pack_maps, glimpse

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'Windows': 'layout', 'tokens_of': 'layout', 'brief': 'layout', 'as_size': 'layout',
    'as_sizes': 'layout', 'window_mask': 'layout', 'stack_windows': 'layout',
    'crop_windows': 'layout', 'pack_windows': 'layout', 'as_packed': 'layout',
    'rgb_picture': 'layout', 'show_windows': 'layout',
    'free_corners': 'sampling', 'sample_windows': 'sampling', 'sample_tokens': 'sampling',
    'random_sizes': 'sampling', 'distance_histogram': 'sampling', 'seen_neighbours': 'sampling',
    'Scheme': 'schemes', 'parse_scheme': 'schemes', 'scheme_coverage': 'schemes',
    'scheme_of': 'schemes', 'usual_windows': 'schemes',
    'patch_view': 'tokens', 'patchify': 'tokens', 'unpatchify': 'tokens',
    'pad_to_patches': 'tokens', 'unpad': 'tokens', 'gather_tokens': 'tokens',
    'scatter_tokens': 'tokens', 'PatchEmbed': 'tokens', 'check_windows': 'tokens',
    'guide_methods': 'guidance', 'bin_flow': 'guidance', 'perturb_map': 'guidance',
    'best_windows': 'guidance', 'guide_windows': 'guidance', 'match_coverage': 'guidance',
    'show_guidance': 'guidance', 'Guidance': 'guidance', 'guide_once': 'guidance',
    'refine_windows': 'canvas', 'paste_windows': 'canvas', 'cell_places': 'canvas',
    'square_offsets': 'canvas', 'sample_at': 'canvas', 'warp_window': 'canvas', 'lookup': 'canvas',
    'correlate': 'canvas', 'neighbours': 'canvas',
    'LazyMap': 'lazy', 'LazyBatch': 'lazy', 'stack_maps': 'lazy', 'read_maps': 'lazy',
    'pack_maps': 'lazy', 'glimpse': 'lazy',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
