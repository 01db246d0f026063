"Train plain vision transformers at high resolution from two windows"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .windows.layout import Windows, crop_windows, show_windows
    from .windows.sampling import sample_windows, sample_tokens
    from .windows.schemes import parse_scheme
    from .windows.guidance import guide_windows
    from .windows.tokens import pad_to_patches
    from .data.folders import SegFolder, DepthFolder, FlowFolder
    from .data.augment import Augment, FlowAugment
    from .data.images import read_image
    from .data.flow_files import read_flow, write_flow
    from .data.pictures import flow_to_color
    from .worlds.datasets import DrivingWorld, LayeredFlow
    from .models.vit import ViT
    from .models.loading import load_vit
    from .models.heads import LinearHead, UpsampleHead, ConvNeXtHead, DPTHead
    from .models.dense import DenseModel, FlowModel, create_model, list_models
    from .models.backbones import timm_encoder
    from .models.released import load_croco
    from .models.hub import save_model, load_model, push_model, bundled_model
    from .models.controls import set_temperature, get_temperature, fold_temperature
    from .models.controls import set_position_scale, capture
    from .attention.statistics import self_probability, attention_rows
    from .attention.views import compare_attention
    from .tasks.registry import make_task
    from .tasks.task import evaluate
    from .tasks.segmentation import seg_loss
    from .tasks.depth import depth_loss
    from .tasks.flow_scoring import flow_loss
    from .training.loop import TrainConfig, fit, resume
    from .training.log import show_log
    from .training.recipes import get_preset, train_recipe
    from .inference.modes import predict
    from .inference.predictor import Predictor
    from .inference.export import export_model
    from .temperature.theory import log_ratio
    from .temperature.matching import match_temperature
    from .temperature.search import sweep_temperature, learn_temperature
    from .bench.cost import plan, flops, memory
    from .workbench.windows import WindowExplorer
    from .workbench.guidance import GuidanceExplorer
    from .workbench.attention import AttentionExplorer
    from .workbench.temperature import TemperatureExplorer

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'Windows': 'windows.layout', 'crop_windows': 'windows.layout',
    'show_windows': 'windows.layout',
    'sample_windows': 'windows.sampling', 'sample_tokens': 'windows.sampling',
    'parse_scheme': 'windows.schemes',
    'guide_windows': 'windows.guidance',
    'pad_to_patches': 'windows.tokens',
    'SegFolder': 'data.folders', 'DepthFolder': 'data.folders', 'FlowFolder': 'data.folders',
    'Augment': 'data.augment', 'FlowAugment': 'data.augment',
    'read_image': 'data.images',
    'read_flow': 'data.flow_files', 'write_flow': 'data.flow_files',
    'flow_to_color': 'data.pictures',
    'DrivingWorld': 'worlds.datasets', 'LayeredFlow': 'worlds.datasets',
    'ViT': 'models.vit',
    'load_vit': 'models.loading',
    'LinearHead': 'models.heads', 'UpsampleHead': 'models.heads', 'ConvNeXtHead': 'models.heads',
    'DPTHead': 'models.heads',
    'DenseModel': 'models.dense', 'FlowModel': 'models.dense', 'create_model': 'models.dense',
    'list_models': 'models.dense',
    'timm_encoder': 'models.backbones',
    'load_croco': 'models.released',
    'save_model': 'models.hub', 'load_model': 'models.hub', 'push_model': 'models.hub',
    'bundled_model': 'models.hub',
    'set_temperature': 'models.controls', 'get_temperature': 'models.controls',
    'fold_temperature': 'models.controls', 'set_position_scale': 'models.controls',
    'capture': 'models.controls',
    'self_probability': 'attention.statistics', 'attention_rows': 'attention.statistics',
    'compare_attention': 'attention.views',
    'make_task': 'tasks.registry',
    'evaluate': 'tasks.task',
    'seg_loss': 'tasks.segmentation',
    'depth_loss': 'tasks.depth',
    'flow_loss': 'tasks.flow_scoring',
    'TrainConfig': 'training.loop', 'fit': 'training.loop', 'resume': 'training.loop',
    'show_log': 'training.log',
    'get_preset': 'training.recipes', 'train_recipe': 'training.recipes',
    'predict': 'inference.modes',
    'Predictor': 'inference.predictor',
    'export_model': 'inference.export',
    'log_ratio': 'temperature.theory',
    'match_temperature': 'temperature.matching',
    'sweep_temperature': 'temperature.search', 'learn_temperature': 'temperature.search',
    'plan': 'bench.cost', 'flops': 'bench.cost', 'memory': 'bench.cost',
    'WindowExplorer': 'workbench.windows',
    'GuidanceExplorer': 'workbench.guidance',
    'AttentionExplorer': 'workbench.attention',
    'TemperatureExplorer': 'workbench.temperature',
}
__all__ = ['__version__', *_HOME]
_ROOMS = (
    'windows', 'data', 'worlds', 'models', 'attention', 'tasks', 'training', 'inference',
    'temperature', 'bench', 'workbench', 'experiments',
)

def __getattr__(name):
    if name in _ROOMS: return import_module(f'.{name}', __name__)
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try: return getattr(import_module(f'.{_HOME[name]}', __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in ('anywidget', 'ipywidgets', 'traitlets'): raise
        raise ImportError(f"{name} needs {error.name}, which is not installed: "
                          "pip install 'winwin[lab]'") from error

def __dir__(): return sorted(set(globals()) | set(__all__))
