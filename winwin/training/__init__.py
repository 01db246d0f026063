"The training loop, checkpoints, and whole runs by name"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .log import TRACKERS, check_trackers, check_tracker_names, RunLog, EvalPictures, read_log
    from .log import show_log, LiveCurve
    from .loop import TrainConfig, newer_version, read_config, make_optimizer, make_schedule
    from .loop import TrainRun, train_step, TrainResult, fit, resume
    from .recipes import presets, ModelOptions, AugmentOptions, Recipe, option_fields
    from .recipes import option_values, option_types, change, saved_recipe, read_recipe, get_preset
    from .recipes import preset_name, configured, paper_variants, recipe_variants, recipe_data
    from .recipes import recipe_task, recipe_model, recipe_augment, bands_text, held_out_text
    from .recipes import check_held_out, size_problems, label_problems, train_recipe

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'TRACKERS': 'log', 'check_trackers': 'log', 'check_tracker_names': 'log', 'RunLog': 'log',
    'EvalPictures': 'log', 'read_log': 'log', 'show_log': 'log', 'LiveCurve': 'log',
    'TrainConfig': 'loop', 'newer_version': 'loop', 'read_config': 'loop',
    'make_optimizer': 'loop', 'make_schedule': 'loop', 'TrainRun': 'loop', 'train_step': 'loop',
    'TrainResult': 'loop', 'fit': 'loop', 'resume': 'loop',
    'presets': 'recipes', 'ModelOptions': 'recipes', 'AugmentOptions': 'recipes',
    'Recipe': 'recipes', 'option_fields': 'recipes', 'option_values': 'recipes',
    'option_types': 'recipes', 'change': 'recipes', 'saved_recipe': 'recipes',
    'read_recipe': 'recipes', 'get_preset': 'recipes', 'preset_name': 'recipes',
    'configured': 'recipes', 'paper_variants': 'recipes', 'recipe_variants': 'recipes',
    'recipe_data': 'recipes', 'recipe_task': 'recipes', 'recipe_model': 'recipes',
    'recipe_augment': 'recipes', 'bands_text': 'recipes', 'held_out_text': 'recipes',
    'check_held_out': 'recipes', 'size_problems': 'recipes', 'label_problems': 'recipes',
    'train_recipe': 'recipes',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
