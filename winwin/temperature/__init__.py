"Attention that stays sharp when tokens multiply"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .theory import constant_attention, constant_self_probability, constant_tau
    from .theory import constant_height, show_discrepancy, log_ratio, critical_tau
    from .matching import output_sizes, row_means, Match, match_temperature
    from .search import sweep_temperature, Sweep, learn_temperature, Learned
    from .comparison import wide_taus, FullLoss, ImageScores, TemperatureTable, difference_text
    from .comparison import compare_temperatures, token_counts
    from .checkpoint import TrainedRun, open_run, Tempering, choose_temperature, theory_numbers
    from .checkpoint import tempering_text, show_tempering, keep_temperature, undo_temperature
    from .checkpoint import write_tempering

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'constant_attention': 'theory', 'constant_self_probability': 'theory',
    'constant_tau': 'theory', 'constant_height': 'theory', 'show_discrepancy': 'theory',
    'log_ratio': 'theory', 'critical_tau': 'theory',
    'output_sizes': 'matching', 'row_means': 'matching', 'Match': 'matching',
    'match_temperature': 'matching',
    'sweep_temperature': 'search', 'Sweep': 'search', 'learn_temperature': 'search',
    'Learned': 'search',
    'wide_taus': 'comparison', 'FullLoss': 'comparison', 'ImageScores': 'comparison',
    'TemperatureTable': 'comparison', 'difference_text': 'comparison',
    'compare_temperatures': 'comparison', 'token_counts': 'comparison',
    'TrainedRun': 'checkpoint', 'open_run': 'checkpoint', 'Tempering': 'checkpoint',
    'choose_temperature': 'checkpoint', 'theory_numbers': 'checkpoint',
    'tempering_text': 'checkpoint', 'show_tempering': 'checkpoint',
    'keep_temperature': 'checkpoint', 'undo_temperature': 'checkpoint',
    'write_tempering': 'checkpoint',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
