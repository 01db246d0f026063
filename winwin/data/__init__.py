"Images and targets from files, and pictures of them"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .images import IMAGE_SUFFIXES, LABEL_SUFFIXES, DEPTH_SUFFIXES, open_image, image_bands
    from .images import read_bands, read_image, stored_size, turned_text, read_labels, read_depth
    from .images import to_images, check_range, check_bands, load_image, fit_image, find_files
    from .images import find_images, describe_folder, suffix_text, size_text
    from .pictures import ERROR_STEPS, check_flow, full_precision, mark_unknown, flow_wheel
    from .pictures import flow_to_color, wheel_picture, show_wheel, show_flow, show_arrows, warp
    from .pictures import show_warp, flow_error_map, error_shades, show_flow_error, class_palette
    from .pictures import depth_colors, heat_bytes
    from .flow_files import FLOW_FORMATS, read_pfm, check_dataset, read_flow, write_flow
    from .folders import PAIR_ENDS, FileDataset, report_missing, paired_item, SegFolder
    from .folders import absent_classes, DepthFolder, MapFolder, FlowPairs, natural_key, pair_ends
    from .folders import FlowFolder, PairFolder, FramePairs, held_out, hold_out
    from .benchmarks import CITYSCAPES, CAMVID, check_choice, list_folders, archive_root
    from .benchmarks import check_count, BDD100K, CamVid, read_colours, NYUv2, NYUv2Folder
    from .benchmarks import FlyingChairs, FlyingThings3D, Sintel, TartanAir, Spring, KITTI
    from .augment import MAP_KINDS, MapKind, fit_to_patches, resize_item, resize_flow, rotate_item
    from .augment import Augment, FlowAugment
    from .catalogue import need_folders, Cityscapes, ADE20K, PascalVOC, CocoPanoptic, CocoNotes
    from .catalogue import read_coco, segments_to_classes, CocoShapes, paint_shapes, KITTIDepth
    from .catalogue import DIODE, HubItems, open_hub, hub_splits
    from .items import ITEM_MAPS, LARGE_RASTER, as_item, item_text, first_checked, steady_item
    from .items import band_statistics, band_arguments, Careful, raise_errors, too_small, too_large
    from .items import usual_size
    from .rasters import GEO_TAGS, RasterFile, RasterSource, raster_bands, no_data, image_values
    from .rasters import class_values, height_values, RasterFolder, geo_tags, write_raster
    from .rasters import tile_raster
    from .curves import curves_json, HoverFigure, hover, curve_html, plotly_script, save_curves

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'IMAGE_SUFFIXES': 'images', 'LABEL_SUFFIXES': 'images', 'DEPTH_SUFFIXES': 'images',
    'open_image': 'images', 'image_bands': 'images', 'read_bands': 'images',
    'read_image': 'images', 'stored_size': 'images', 'turned_text': 'images',
    'read_labels': 'images', 'read_depth': 'images', 'to_images': 'images',
    'check_range': 'images', 'check_bands': 'images', 'load_image': 'images',
    'fit_image': 'images', 'find_files': 'images', 'find_images': 'images',
    'describe_folder': 'images', 'suffix_text': 'images', 'size_text': 'images',
    'ERROR_STEPS': 'pictures', 'check_flow': 'pictures', 'full_precision': 'pictures',
    'mark_unknown': 'pictures', 'flow_wheel': 'pictures', 'flow_to_color': 'pictures',
    'wheel_picture': 'pictures', 'show_wheel': 'pictures', 'show_flow': 'pictures',
    'show_arrows': 'pictures', 'warp': 'pictures', 'show_warp': 'pictures',
    'flow_error_map': 'pictures', 'error_shades': 'pictures', 'show_flow_error': 'pictures',
    'class_palette': 'pictures', 'depth_colors': 'pictures', 'heat_bytes': 'pictures',
    'FLOW_FORMATS': 'flow_files', 'read_pfm': 'flow_files', 'check_dataset': 'flow_files',
    'read_flow': 'flow_files', 'write_flow': 'flow_files',
    'PAIR_ENDS': 'folders', 'FileDataset': 'folders', 'report_missing': 'folders',
    'paired_item': 'folders', 'SegFolder': 'folders', 'absent_classes': 'folders',
    'DepthFolder': 'folders', 'MapFolder': 'folders', 'FlowPairs': 'folders',
    'natural_key': 'folders', 'pair_ends': 'folders', 'FlowFolder': 'folders',
    'PairFolder': 'folders', 'FramePairs': 'folders', 'held_out': 'folders', 'hold_out': 'folders',
    'CITYSCAPES': 'benchmarks', 'CAMVID': 'benchmarks', 'check_choice': 'benchmarks',
    'list_folders': 'benchmarks', 'archive_root': 'benchmarks', 'check_count': 'benchmarks',
    'BDD100K': 'benchmarks', 'CamVid': 'benchmarks', 'read_colours': 'benchmarks',
    'NYUv2': 'benchmarks', 'NYUv2Folder': 'benchmarks', 'FlyingChairs': 'benchmarks',
    'FlyingThings3D': 'benchmarks', 'Sintel': 'benchmarks', 'TartanAir': 'benchmarks',
    'Spring': 'benchmarks', 'KITTI': 'benchmarks',
    'MAP_KINDS': 'augment', 'MapKind': 'augment', 'fit_to_patches': 'augment',
    'resize_item': 'augment', 'resize_flow': 'augment', 'rotate_item': 'augment',
    'Augment': 'augment', 'FlowAugment': 'augment',
    'need_folders': 'catalogue', 'Cityscapes': 'catalogue', 'ADE20K': 'catalogue',
    'PascalVOC': 'catalogue', 'CocoPanoptic': 'catalogue', 'CocoNotes': 'catalogue',
    'read_coco': 'catalogue', 'segments_to_classes': 'catalogue', 'CocoShapes': 'catalogue',
    'paint_shapes': 'catalogue', 'KITTIDepth': 'catalogue', 'DIODE': 'catalogue',
    'HubItems': 'catalogue', 'open_hub': 'catalogue', 'hub_splits': 'catalogue',
    'ITEM_MAPS': 'items', 'LARGE_RASTER': 'items', 'as_item': 'items', 'item_text': 'items',
    'first_checked': 'items', 'steady_item': 'items', 'band_statistics': 'items',
    'band_arguments': 'items', 'Careful': 'items', 'raise_errors': 'items', 'too_small': 'items',
    'too_large': 'items', 'usual_size': 'items',
    'GEO_TAGS': 'rasters', 'RasterFile': 'rasters', 'RasterSource': 'rasters',
    'raster_bands': 'rasters', 'no_data': 'rasters', 'image_values': 'rasters',
    'class_values': 'rasters', 'height_values': 'rasters', 'RasterFolder': 'rasters',
    'geo_tags': 'rasters', 'write_raster': 'rasters', 'tile_raster': 'rasters',
    'curves_json': 'curves', 'HoverFigure': 'curves', 'hover': 'curves', 'curve_html': 'curves',
    'plotly_script': 'curves', 'save_curves': 'curves',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
