"Everything about one kind of prediction: loss, scores, and how an item is used"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import WRONG, UNKNOWN, Task, fit_outputs, first_map, shade, mark_wrong, score_text
    from .task import predict_full, window_pairs, sum_over_processes, Metrics, MeanMetrics
    from .task import evaluate
    from .segmentation import SEG_LOSSES, seg_loss, SegMetrics, show_confusion, SegTask
    from .segmentation import class_weights, richest_windows
    from .depth import DEPTH_SCORES, depth_loss, DepthMetrics, DepthTask
    from .flow_scoring import FLOW_CHANNELS, FLOW_SCORES, laplacian_loss, flow_uncertainty
    from .flow_scoring import flow_loss, match_targets, match_loss, cell_targets, matching_loss
    from .flow_scoring import FlowMetrics
    from .flow import PairTask, FlowTask, error_colors, uncertainty_shades
    from .stereo import DISPARITY_CHANNELS, disparity_flow, disparity_loss, StereoMetrics
    from .stereo import write_disparity, read_disparity, StereoTask
    from .normals import normals_loss, AngleMetrics, NormalsTask
    from .relative import relative_loss, align_inverse, RelativeTask
    from .completion import completion_loss, complete, CompletionTask
    from .registry import TASKS, register, list_tasks, task_class, check_task_name, make_task
    from .registry import task_of

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'WRONG': 'task', 'UNKNOWN': 'task', 'Task': 'task', 'fit_outputs': 'task', 'first_map': 'task',
    'shade': 'task', 'mark_wrong': 'task', 'score_text': 'task', 'predict_full': 'task',
    'window_pairs': 'task', 'sum_over_processes': 'task', 'Metrics': 'task', 'MeanMetrics': 'task',
    'evaluate': 'task',
    'SEG_LOSSES': 'segmentation', 'seg_loss': 'segmentation', 'SegMetrics': 'segmentation',
    'show_confusion': 'segmentation', 'SegTask': 'segmentation', 'class_weights': 'segmentation',
    'richest_windows': 'segmentation',
    'DEPTH_SCORES': 'depth', 'depth_loss': 'depth', 'DepthMetrics': 'depth', 'DepthTask': 'depth',
    'FLOW_CHANNELS': 'flow_scoring', 'FLOW_SCORES': 'flow_scoring',
    'laplacian_loss': 'flow_scoring', 'flow_uncertainty': 'flow_scoring',
    'flow_loss': 'flow_scoring', 'match_targets': 'flow_scoring', 'match_loss': 'flow_scoring',
    'cell_targets': 'flow_scoring', 'matching_loss': 'flow_scoring', 'FlowMetrics': 'flow_scoring',
    'PairTask': 'flow', 'FlowTask': 'flow', 'error_colors': 'flow', 'uncertainty_shades': 'flow',
    'DISPARITY_CHANNELS': 'stereo', 'disparity_flow': 'stereo', 'disparity_loss': 'stereo',
    'StereoMetrics': 'stereo', 'write_disparity': 'stereo', 'read_disparity': 'stereo',
    'StereoTask': 'stereo',
    'normals_loss': 'normals', 'AngleMetrics': 'normals', 'NormalsTask': 'normals',
    'relative_loss': 'relative', 'align_inverse': 'relative', 'RelativeTask': 'relative',
    'completion_loss': 'completion', 'complete': 'completion', 'CompletionTask': 'completion',
    'TASKS': 'registry', 'register': 'registry', 'list_tasks': 'registry',
    'task_class': 'registry', 'check_task_name': 'registry', 'make_task': 'registry',
    'task_of': 'registry',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
