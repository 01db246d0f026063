"Full resolution, files and folders, and models for other tools"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .modes import predict_flow, tile_offsets, tile_weights, head_reach, predict_bands
    from .modes import auto_rows, predict, check_tile
    from .predictor import FlowPredictor, Prediction, Predictor, open_model, FolderReport
    from .predictor import predict_and_write
    from .submissions import SUBMISSIONS, submission_files, SubmissionReport, write_submission
    from .export import WholeImage, DensePath, FlowPath, Exported, export_model
    from .readings import Reading, read_item, read_images, border_distance, draw_images
    from .readings import paired_difference, write_sums, read_sums
    from .rasters import RASTER_PIXELS, find_rasters, TilePlan, plan_tiles, RasterJob, trained_size
    from .rasters import predict_raster

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'predict_flow': 'modes', 'tile_offsets': 'modes', 'tile_weights': 'modes',
    'head_reach': 'modes', 'predict_bands': 'modes', 'auto_rows': 'modes', 'predict': 'modes',
    'check_tile': 'modes',
    'FlowPredictor': 'predictor', 'Prediction': 'predictor', 'Predictor': 'predictor',
    'open_model': 'predictor', 'FolderReport': 'predictor', 'predict_and_write': 'predictor',
    'SUBMISSIONS': 'submissions', 'submission_files': 'submissions',
    'SubmissionReport': 'submissions', 'write_submission': 'submissions',
    'WholeImage': 'export', 'DensePath': 'export', 'FlowPath': 'export', 'Exported': 'export',
    'export_model': 'export',
    'Reading': 'readings', 'read_item': 'readings', 'read_images': 'readings',
    'border_distance': 'readings', 'draw_images': 'readings', 'paired_difference': 'readings',
    'write_sums': 'readings', 'read_sums': 'readings',
    'RASTER_PIXELS': 'rasters', 'find_rasters': 'rasters', 'TilePlan': 'rasters',
    'plan_tiles': 'rasters', 'RasterJob': 'rasters', 'trained_size': 'rasters',
    'predict_raster': 'rasters',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
