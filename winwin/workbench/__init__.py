"Look with your hands: explorers for a notebook"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .widgets import WINDOW_COLORS, lut_bytes, image_bytes, window_boxes, boxes_windows
    from .widgets import TokenCanvas, draw_canvas, LineChart, histogram_line, draw_chart
    from .explorer import Latest, Download, CopyText, widget_row, maps_row, row_texts
    from .explorer import uploaded_images, text_table, Explorer, device_of, ExampleScene
    from .explorer import example_scene
    from .windows import window_facts, WindowExplorer
    from .guidance import GuidanceExplorer
    from .attention import AttentionExplorer
    from .temperature import TemperatureExplorer
    from .lab import explorers, lab_notebook, notebook_cell, tutorial_files, write_notebooks
    from .lab import named_model, write_yours, check_installed, free_port, LabServer, run_lab
    from .gallery import gallery_cases, gallery_page, Gallery

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'WINDOW_COLORS': 'widgets', 'lut_bytes': 'widgets', 'image_bytes': 'widgets',
    'window_boxes': 'widgets', 'boxes_windows': 'widgets', 'TokenCanvas': 'widgets',
    'draw_canvas': 'widgets', 'LineChart': 'widgets', 'histogram_line': 'widgets',
    'draw_chart': 'widgets',
    'Latest': 'explorer', 'Download': 'explorer', 'CopyText': 'explorer', 'widget_row': 'explorer',
    'maps_row': 'explorer', 'row_texts': 'explorer', 'uploaded_images': 'explorer',
    'text_table': 'explorer', 'Explorer': 'explorer', 'device_of': 'explorer',
    'ExampleScene': 'explorer', 'example_scene': 'explorer',
    'window_facts': 'windows', 'WindowExplorer': 'windows',
    'GuidanceExplorer': 'guidance',
    'AttentionExplorer': 'attention',
    'TemperatureExplorer': 'temperature',
    'explorers': 'lab', 'lab_notebook': 'lab', 'notebook_cell': 'lab', 'tutorial_files': 'lab',
    'write_notebooks': 'lab', 'named_model': 'lab', 'write_yours': 'lab', 'check_installed': 'lab',
    'free_port': 'lab', 'LabServer': 'lab', 'run_lab': 'lab',
    'gallery_cases': 'gallery', 'gallery_page': 'gallery', 'Gallery': 'gallery',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try: return getattr(import_module(f'.{_HOME[name]}', __name__), name)
    except ModuleNotFoundError as error:
        if error.name not in ('anywidget', 'ipywidgets', 'traitlets'): raise
        raise ImportError(f"{name} needs {error.name}, which is not installed: "
                          "pip install 'winwin[lab]'") from error

def __dir__(): return sorted(set(globals()) | set(__all__))
