"What a step costs, and how that compares"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cost import CountFlops, Cost, trace_cost, as_model, flops, Memory, memory, Plan, plan
    from .cost import Speed, step_seconds, measure_speed, ClusterStep, cluster_step
    from .harness import benches, compare, ratio, Bench, list_benches, register_bench, run_bench
    from .harness import use_threads, gemm, cpu_share, check_targets, call_memory, peak_memory
    from .harness import report_bench
    from .contests import model_benches, PlainViT, vit_flops, RecipeStep, write_streets
    from .contests import input_times, step_flops, train_whole_bench
    from .attention import attention_benches
    from .finetune import finetune_benches, SIZES, MadePixels, made_item, TuneStep, write_photo
    from .finetune import LoadPhoto

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'CountFlops': 'cost', 'Cost': 'cost', 'trace_cost': 'cost', 'as_model': 'cost',
    'flops': 'cost', 'Memory': 'cost', 'memory': 'cost', 'Plan': 'cost', 'plan': 'cost',
    'Speed': 'cost', 'step_seconds': 'cost', 'measure_speed': 'cost', 'ClusterStep': 'cost',
    'cluster_step': 'cost',
    'benches': 'harness', 'compare': 'harness', 'ratio': 'harness', 'Bench': 'harness',
    'list_benches': 'harness', 'register_bench': 'harness', 'run_bench': 'harness',
    'use_threads': 'harness', 'gemm': 'harness', 'cpu_share': 'harness',
    'check_targets': 'harness', 'call_memory': 'harness', 'peak_memory': 'harness',
    'report_bench': 'harness',
    'model_benches': 'contests', 'PlainViT': 'contests', 'vit_flops': 'contests',
    'RecipeStep': 'contests', 'write_streets': 'contests', 'input_times': 'contests',
    'step_flops': 'contests', 'train_whole_bench': 'contests',
    'attention_benches': 'attention',
    'finetune_benches': 'finetune', 'SIZES': 'finetune', 'MadePixels': 'finetune',
    'made_item': 'finetune', 'TuneStep': 'finetune', 'write_photo': 'finetune',
    'LoadPhoto': 'finetune',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
