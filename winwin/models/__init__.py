"Encoder, head, whole models, and other people's weights"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .positions import SCALE_KINDS, parse_scale, scaled_frequencies, rope_table, apply_rope
    from .positions import rotate_pairs, half_to_pairs, pairs_to_half, sincos_pos, trained_grid
    from .layers import attend, Attention, rotate_back, scale_keys, gelu, Mlp, Block, to_tiles
    from .layers import from_tiles, attend_locally, CrossAttention, DecoderBlock, LoRALinear
    from .layers import add_lora, merge_lora, plain_state
    from .vit import vit_sizes, Encoder, run_blocks, ViT, init_weights, image_statistics, Decoder
    from .vit import quiet_start, layer_groups, no_decay
    from .loading import LEFT_OUT, read_checkpoint, empty_parameters, fill_model, from_transformers
    from .loading import resample_patch_embed, adapt_bands, find_weights, plain_weights, fill_vit
    from .loading import is_plain, load_vit
    from .heads import Head, LinearHead, ProbeHead, ConvNeXtBlock, ConvNeXtHead, UpsampleHead
    from .heads import ResidualConvUnit, FeatureFusion, DPTHead, dpt_hooks, DecoupledDPTHead
    from .heads import ConvStem, FlowUpdate, WindowMatch, MatchingHead
    from .backbones import BACKBONES, NEWER, TimmEncoder, embed_timm, grid_places, list_backbones
    from .backbones import timm_encoder
    from .dense import decoder_sizes, WindowModel, DenseModel, FlowModel, MatchingModel
    from .dense import CompletionModel, list_models, list_heads, model_task, model_frames
    from .dense import model_bands, model_outputs, create_model, build_model
    from .controls import attention_kinds, attention_layers, layer_tau, set_layer_tau, watch
    from .controls import FusedCall, watch_calls, fold_mask, Seen, capture, knows_layers
    from .controls import set_temperature, get_temperature, fold_temperature, tempered
    from .controls import attention_temperature, size_scale, set_position_scale, get_position_scale
    from .controls import parse_trainable, set_trainable
    from .released import croco_names, literal_kwargs, CrocoFile, read_croco, croco_arguments
    from .released import to_croco, load_croco, load_depth_anything, is_depth_anything
    from .hub import temperature_dict, restore_temperatures, check_savable, HubModel
    from .hub import check_arguments, save_model, load_model, push_model, bundled_models
    from .hub import bundled_model

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'SCALE_KINDS': 'positions', 'parse_scale': 'positions', 'scaled_frequencies': 'positions',
    'rope_table': 'positions', 'apply_rope': 'positions', 'rotate_pairs': 'positions',
    'half_to_pairs': 'positions', 'pairs_to_half': 'positions', 'sincos_pos': 'positions',
    'trained_grid': 'positions',
    'attend': 'layers', 'Attention': 'layers', 'rotate_back': 'layers', 'scale_keys': 'layers',
    'gelu': 'layers', 'Mlp': 'layers', 'Block': 'layers', 'to_tiles': 'layers',
    'from_tiles': 'layers', 'attend_locally': 'layers', 'CrossAttention': 'layers',
    'DecoderBlock': 'layers', 'LoRALinear': 'layers', 'add_lora': 'layers', 'merge_lora': 'layers',
    'plain_state': 'layers',
    'vit_sizes': 'vit', 'Encoder': 'vit', 'run_blocks': 'vit', 'ViT': 'vit', 'init_weights': 'vit',
    'image_statistics': 'vit', 'Decoder': 'vit', 'quiet_start': 'vit', 'layer_groups': 'vit',
    'no_decay': 'vit',
    'LEFT_OUT': 'loading', 'read_checkpoint': 'loading', 'empty_parameters': 'loading',
    'fill_model': 'loading', 'from_transformers': 'loading', 'resample_patch_embed': 'loading',
    'adapt_bands': 'loading', 'find_weights': 'loading', 'plain_weights': 'loading',
    'fill_vit': 'loading', 'is_plain': 'loading', 'load_vit': 'loading',
    'Head': 'heads', 'LinearHead': 'heads', 'ProbeHead': 'heads', 'ConvNeXtBlock': 'heads',
    'ConvNeXtHead': 'heads', 'UpsampleHead': 'heads', 'ResidualConvUnit': 'heads',
    'FeatureFusion': 'heads', 'DPTHead': 'heads', 'dpt_hooks': 'heads',
    'DecoupledDPTHead': 'heads', 'ConvStem': 'heads', 'FlowUpdate': 'heads',
    'WindowMatch': 'heads', 'MatchingHead': 'heads',
    'BACKBONES': 'backbones', 'NEWER': 'backbones', 'TimmEncoder': 'backbones',
    'embed_timm': 'backbones', 'grid_places': 'backbones', 'list_backbones': 'backbones',
    'timm_encoder': 'backbones',
    'decoder_sizes': 'dense', 'WindowModel': 'dense', 'DenseModel': 'dense', 'FlowModel': 'dense',
    'MatchingModel': 'dense', 'CompletionModel': 'dense', 'list_models': 'dense',
    'list_heads': 'dense', 'model_task': 'dense', 'model_frames': 'dense', 'model_bands': 'dense',
    'model_outputs': 'dense', 'create_model': 'dense', 'build_model': 'dense',
    'attention_kinds': 'controls', 'attention_layers': 'controls', 'layer_tau': 'controls',
    'set_layer_tau': 'controls', 'watch': 'controls', 'FusedCall': 'controls',
    'watch_calls': 'controls', 'fold_mask': 'controls', 'Seen': 'controls', 'capture': 'controls',
    'knows_layers': 'controls', 'set_temperature': 'controls', 'get_temperature': 'controls',
    'fold_temperature': 'controls', 'tempered': 'controls', 'attention_temperature': 'controls',
    'size_scale': 'controls', 'set_position_scale': 'controls', 'get_position_scale': 'controls',
    'parse_trainable': 'controls', 'set_trainable': 'controls',
    'croco_names': 'released', 'literal_kwargs': 'released', 'CrocoFile': 'released',
    'read_croco': 'released', 'croco_arguments': 'released', 'to_croco': 'released',
    'load_croco': 'released', 'load_depth_anything': 'released', 'is_depth_anything': 'released',
    'temperature_dict': 'hub', 'restore_temperatures': 'hub', 'check_savable': 'hub',
    'HubModel': 'hub', 'check_arguments': 'hub', 'save_model': 'hub', 'load_model': 'hub',
    'push_model': 'hub', 'bundled_models': 'hub', 'bundled_model': 'hub',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
