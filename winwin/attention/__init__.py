"What layers look at, in memory that grows with the tokens and not with their square"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .statistics import attention_sums, head_taus, self_probability, token_products
    from .statistics import attention_logits, attention_rows, attention_entropy, window_mass
    from .statistics import window_ids, attention_distance, distance_profile, TauCurve
    from .views import View, make_views, patch_size_of, TokenMeans, layer_means
    from .views import AttentionComparison, compare_attention
    from .any_model import most_in_front, find_patch, call_model, CalledLayer, AnyModel, NotSeen
    from .any_model import look_at_calls, find_layers
    from .recorder import RecordedLayer, AttentionRecorder, normalize_images
    from .token_maps import TokenRows, prefix_share, token_panels, layer_rows, mosaic, tau_curve
    from .token_maps import curve_map, token_stats, LayerCurves, read_with
    from .features import feature_colors, feature_similarity, feature_norms, feature_moves

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'attention_sums': 'statistics', 'head_taus': 'statistics', 'self_probability': 'statistics',
    'token_products': 'statistics', 'attention_logits': 'statistics',
    'attention_rows': 'statistics', 'attention_entropy': 'statistics', 'window_mass': 'statistics',
    'window_ids': 'statistics', 'attention_distance': 'statistics',
    'distance_profile': 'statistics', 'TauCurve': 'statistics',
    'View': 'views', 'make_views': 'views', 'patch_size_of': 'views', 'TokenMeans': 'views',
    'layer_means': 'views', 'AttentionComparison': 'views', 'compare_attention': 'views',
    'most_in_front': 'any_model', 'find_patch': 'any_model', 'call_model': 'any_model',
    'CalledLayer': 'any_model', 'AnyModel': 'any_model', 'NotSeen': 'any_model',
    'look_at_calls': 'any_model', 'find_layers': 'any_model',
    'RecordedLayer': 'recorder', 'AttentionRecorder': 'recorder', 'normalize_images': 'recorder',
    'TokenRows': 'token_maps', 'prefix_share': 'token_maps', 'token_panels': 'token_maps',
    'layer_rows': 'token_maps', 'mosaic': 'token_maps', 'tau_curve': 'token_maps',
    'curve_map': 'token_maps', 'token_stats': 'token_maps', 'LayerCurves': 'token_maps',
    'read_with': 'token_maps',
    'feature_colors': 'features', 'feature_similarity': 'features', 'feature_norms': 'features',
    'feature_moves': 'features',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
