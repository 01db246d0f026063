"The demo, the studies of the paper, and their reports"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .demo import demos, DemoPlan, get_demo, render_scenes, step_costs, pick_threads
    from .demo import fit_budget, start_encoder, train_demo, prediction_modes, compare_predictions
    from .demo import run_demo, compare_training, store_comparison, stored_comparison
    from .studies import PHOTO_STUDIES, Study, log_ratio_scores, pair_scores, loss_curve
    from .studies import list_studies, get_study, run_study, read_study, collect_study, summarize
    from .studies import report, verdict, temperature_report, photo_table
    from .resolution import resolution_sizes, StreetViews, score_sizes, resolution_study
    from .resolution import average_sizes, show_resolution, resolution_table

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'demos': 'demo', 'DemoPlan': 'demo', 'get_demo': 'demo', 'render_scenes': 'demo',
    'step_costs': 'demo', 'pick_threads': 'demo', 'fit_budget': 'demo', 'start_encoder': 'demo',
    'train_demo': 'demo', 'prediction_modes': 'demo', 'compare_predictions': 'demo',
    'run_demo': 'demo', 'compare_training': 'demo', 'store_comparison': 'demo',
    'stored_comparison': 'demo',
    'PHOTO_STUDIES': 'studies', 'Study': 'studies', 'log_ratio_scores': 'studies',
    'pair_scores': 'studies', 'loss_curve': 'studies', 'list_studies': 'studies',
    'get_study': 'studies', 'run_study': 'studies', 'read_study': 'studies',
    'collect_study': 'studies', 'summarize': 'studies', 'report': 'studies', 'verdict': 'studies',
    'temperature_report': 'studies', 'photo_table': 'studies',
    'resolution_sizes': 'resolution', 'StreetViews': 'resolution', 'score_sizes': 'resolution',
    'resolution_study': 'resolution', 'average_sizes': 'resolution',
    'show_resolution': 'resolution', 'resolution_table': 'resolution',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
