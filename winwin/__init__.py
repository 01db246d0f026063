"Train plain vision transformers at high resolution from two windows"
# Made by tools/nb.py from the notebooks' public names: edit those, not this file.
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .windows import Windows, window_mask, free_corners, sample_windows, sample_tokens, random_sizes, crop_windows, show_windows, distance_histogram, seen_neighbours
    from .schemes import Scheme, parse_scheme, present
    from .tokens import patch_view, patchify, unpatchify, pad_to_patches, unpad, gather_tokens, scatter_tokens, PatchEmbed, check_windows
    from .rope import rope_table, apply_rope, rotate_pairs, half_to_pairs, pairs_to_half, sincos_pos
    from .vit import vit_sizes, attend, Attention, gelu, Mlp, Block, to_tiles, from_tiles, attend_locally, ViT, run_blocks, init_weights
    from .heads import Head, LinearHead, ConvNeXtBlock, ConvNeXtHead, ResidualConvUnit, FeatureFusion, DPTHead, dpt_hooks
    from .models import DenseModel, list_models, create_model
    from .pretrained import temperatures, restore_temperatures, save_model, load_model
    from .losses import seg_loss, depth_loss
    from .metrics import DEPTH_SCORES, SegMetrics, show_confusion, DepthMetrics
    from .worlds import DrivingWorld, color_labels, color_flow, show_world
    from .datasets import FileDataset, SegFolder, DepthFolder, BDD100K, NYUv2, fit_to_patches, resize_item, Augment
    from .predict import tile_offsets, head_reach, predict_bands, predict
    from .bench import benches, clock, compare, ratio, Bench, register, run_bench, gemm, cpu_share, pick_device, judge, resident, peak_memory, PlainViT, vit_flops, report_bench
    from .cli import Command, Check, check_versions, check_pairing, check_device, check_bf16, check_forward, Doctor, BenchCommand, main

_HOME = { # public name -> module, loaded on first use so that `import winwin` stays quick
    'Windows': 'windows', 'window_mask': 'windows', 'free_corners': 'windows', 'sample_windows': 'windows', 'sample_tokens': 'windows', 'random_sizes': 'windows', 'crop_windows': 'windows', 'show_windows': 'windows', 'distance_histogram': 'windows', 'seen_neighbours': 'windows',
    'Scheme': 'schemes', 'parse_scheme': 'schemes', 'present': 'schemes',
    'patch_view': 'tokens', 'patchify': 'tokens', 'unpatchify': 'tokens', 'pad_to_patches': 'tokens', 'unpad': 'tokens', 'gather_tokens': 'tokens', 'scatter_tokens': 'tokens', 'PatchEmbed': 'tokens', 'check_windows': 'tokens',
    'rope_table': 'rope', 'apply_rope': 'rope', 'rotate_pairs': 'rope', 'half_to_pairs': 'rope', 'pairs_to_half': 'rope', 'sincos_pos': 'rope',
    'vit_sizes': 'vit', 'attend': 'vit', 'Attention': 'vit', 'gelu': 'vit', 'Mlp': 'vit', 'Block': 'vit', 'to_tiles': 'vit', 'from_tiles': 'vit', 'attend_locally': 'vit', 'ViT': 'vit', 'run_blocks': 'vit', 'init_weights': 'vit',
    'Head': 'heads', 'LinearHead': 'heads', 'ConvNeXtBlock': 'heads', 'ConvNeXtHead': 'heads', 'ResidualConvUnit': 'heads', 'FeatureFusion': 'heads', 'DPTHead': 'heads', 'dpt_hooks': 'heads',
    'DenseModel': 'models', 'list_models': 'models', 'create_model': 'models',
    'temperatures': 'pretrained', 'restore_temperatures': 'pretrained', 'save_model': 'pretrained', 'load_model': 'pretrained',
    'seg_loss': 'losses', 'depth_loss': 'losses',
    'DEPTH_SCORES': 'metrics', 'SegMetrics': 'metrics', 'show_confusion': 'metrics', 'DepthMetrics': 'metrics',
    'DrivingWorld': 'worlds', 'color_labels': 'worlds', 'color_flow': 'worlds', 'show_world': 'worlds',
    'FileDataset': 'datasets', 'SegFolder': 'datasets', 'DepthFolder': 'datasets', 'BDD100K': 'datasets', 'NYUv2': 'datasets', 'fit_to_patches': 'datasets', 'resize_item': 'datasets', 'Augment': 'datasets',
    'tile_offsets': 'predict', 'head_reach': 'predict', 'predict_bands': 'predict', 'predict': 'predict',
    'benches': 'bench', 'clock': 'bench', 'compare': 'bench', 'ratio': 'bench', 'Bench': 'bench', 'register': 'bench', 'run_bench': 'bench', 'gemm': 'bench', 'cpu_share': 'bench', 'pick_device': 'bench', 'judge': 'bench', 'resident': 'bench', 'peak_memory': 'bench', 'PlainViT': 'bench', 'vit_flops': 'bench', 'report_bench': 'bench',
    'Command': 'cli', 'Check': 'cli', 'check_versions': 'cli', 'check_pairing': 'cli', 'check_device': 'cli', 'check_bf16': 'cli', 'check_forward': 'cli', 'Doctor': 'cli', 'BenchCommand': 'cli', 'main': 'cli',
}
__all__ = ['__version__', *_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module 'winwin' has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))

class _Package(ModuleType):
    "`from winwin import predict` is the function, also after the module `winwin.predict` was imported"
    def __setattr__(self, name, value):
        if _HOME.get(name) == name and isinstance(value, ModuleType): value = getattr(value, name)
        super().__setattr__(name, value)

sys.modules[__name__].__class__ = _Package
