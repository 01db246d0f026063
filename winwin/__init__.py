"Train plain vision transformers at high resolution from two windows"
# Made by tools/nb.py from the notebooks' public names: edit those, not this file.
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .windows import Windows, window_mask, stack_windows, free_corners, sample_windows, sample_tokens, random_sizes, crop_windows, show_windows, distance_histogram, seen_neighbours
    from .schemes import Scheme, parse_scheme, present
    from .tokens import patch_view, patchify, unpatchify, pad_to_patches, unpad, gather_tokens, scatter_tokens, PatchEmbed, check_windows
    from .rope import rope_table, apply_rope, rotate_pairs, half_to_pairs, pairs_to_half, sincos_pos, trained_grid
    from .vit import vit_sizes, attend, Attention, rotate_back, gelu, Mlp, Block, to_tiles, from_tiles, attend_locally, ViT, run_blocks, image_statistics, init_weights
    from .heads import Head, LinearHead, ConvNeXtBlock, ConvNeXtHead, ResidualConvUnit, FeatureFusion, DPTHead, dpt_hooks, DecoupledDPTHead
    from .decoder import CrossAttention, DecoderBlock, Decoder, quiet_start, layer_groups, no_decay
    from .guidance import guide_methods, bin_flow, perturb_map, best_windows, guide_windows, match_coverage, show_guidance
    from .completion import CompletionModel, completion_loss, complete
    from .weights import read_checkpoint, Unfilled, fill_model
    from .backbones import backbones, TimmEncoder, embed_timm, list_backbones, timm_encoder, from_transformers
    from .models import DenseModel, FlowModel, list_models, model_task, create_model
    from .croco_files import literal_kwargs, CrocoFile, read_croco, croco_arguments
    from .croco import croco_names, to_croco, load_croco
    from .attention import attention_sums, head_taus, self_probability, token_products, attention_logits, attention_rows, attention_entropy, window_mass, attention_distance, distance_profile
    from .curves import TauCurve
    from .layers import attention_kinds, attention_layers, layer_tau, set_layer_tau, watch, Seen, capture
    from .constant import constant_attention, constant_self_probability, constant_tau, constant_height
    from .views import View, make_views, layer_means
    from .matching import output_sizes, Match, match_temperature
    from .learning import learn_temperature, Learned
    from .temperature import set_temperature, get_temperature, fold_temperature, log_ratio, sweep_temperature, Sweep
    from .pretrained import temperatures, restore_temperatures, HubModel, save_model, load_model, push_model
    from .positions import size_scale, set_position_scale, get_position_scale
    from .losses import seg_loss, depth_loss
    from .flow_losses import FLOW_CHANNELS, laplacian_loss, flow_uncertainty, flow_loss, match_targets, match_loss
    from .metrics import DEPTH_SCORES, SegMetrics, show_confusion, DepthMetrics
    from .streets import STREET_CLASSES, make_street
    from .raycast import camera_rays, trace_street, street_flow
    from .paint import paint_street
    from .flow_metrics import FLOW_SCORES, FlowMetrics
    from .flow_pictures import ERROR_STEPS, flow_wheel, flow_to_color, show_wheel, show_flow, show_arrows, warp, show_warp, flow_error_map, show_flow_error
    from .textures import TEXTURES, relief, make_texture, Photos
    from .layered import Motion, make_motion, Shape, make_shape, Layer, make_layers, render_layers, layers_flow, relight
    from .worlds import DrivingWorld, color_labels, show_world, LayeredFlow
    from .files import read_image, read_labels, read_depth, find_files, FileDataset
    from .augment import fit_to_patches, resize_item, resize_flow, Augment
    from .datasets import SegFolder, DepthFolder, BDD100K, NYUv2
    from .flow_files import read_flow, write_flow
    from .flow_datasets import FlowPairs, FlowFolder, FramePairs, FlyingChairs, FlyingThings3D, Sintel, TartanAir, Spring, KITTI
    from .flow_augment import FlowAugment
    from .mixtures import parse_mix, Mix
    from .tasks import Task, SegTask, DepthTask, FlowTask, MeanMetrics, CompletionTask, make_task, evaluate, read_full
    from .streams import derive_seed, derive_generator, Draws, draws_of, batches, stack
    from .checkpoints import pack_state, unpack_state, write_folder, settle, write_state, read_state, find_model, differences
    from .meter import clock, resident
    from .train import TrainConfig, read_config, make_optimizer, make_schedule, TrainResult, fit, resume, read_log, show_log, LiveCurve
    from .recipes import presets, Recipe, get_preset, variants, change, recipe_variants, read_recipe, recipe_data, recipe_task, recipe_model, recipe_augment, train_recipe
    from .tuning import wide_taus, FullLoss, Judged, TemperatureTable, compare_temperatures, token_counts
    from .predict import tile_offsets, tile_weights, head_reach, predict_bands, auto_rows, predict
    from .predictor import Prediction, Predictor, FolderReport
    from .flow_predict import flow_weights, predict_flow
    from .flow_predictor import FlowPrediction, FlowPredictor
    from .submissions import SUBMISSIONS, submission_files, SubmissionReport, write_submission
    from .exports import WholeImage, DensePath, FlowPath, Exported, export_model
    from .probes import AttentionComparison, compare_attention, show_discrepancy
    from .shipped import shipped_models, shipped_model
    from .cost import CountFlops, Cost, trace_cost, flops, Memory, memory, Plan, plan
    from .speed import Speed, step_seconds, measure_speed
    from .canvas import WINDOW_COLORS, heat_bytes, lut_bytes, image_bytes, window_boxes, boxes_windows, TokenCanvas, draw_canvas
    from .snapshots import shown_parts, take_snapshot, snapshot_changes, snapshot_page
    from .explorers import list_devices, Latest, Download, CopyText, Explorer
    from .window_explorer import window_facts, scheme_coverage, scheme_of, WindowExplorer
    from .guidance_explorer import Guidance, guide_once, GuidanceExplorer
    from .attention_maps import fit_image, LayerLook, AttentionMaps, usual_windows, tempered
    from .token_rows import TokenRows, token_panels, layer_rows, mosaic, tau_curve, curve_map
    from .attention_explorer import example_image, AttentionExplorer
    from .charts import LineChart, histogram_line, draw_chart
    from .layer_curves import token_stats, LayerCurves, read_with, answer_picture, answer_change
    from .temperature_explorer import example_data, TemperatureExplorer
    from .bench import benches, compare, ratio, Bench, register, run_bench, gemm, cpu_share, pick_device, judge, peak_memory, PlainViT, vit_flops, report_bench
    from .pages import Html, html_text, html_code, png_uri, html_picture, html_gallery, html_columns, html_drawing, html_table, html_bar, html_numbers, HtmlPage, html_legend
    from .doctor import Check, check_versions, check_pairing, check_device, check_bf16, check_forward, Doctor
    from .panels import Panels, SegPanels, DepthPanels, window_picture, draw_picture, loss_drawing, read_images, scene_pictures, reading_pictures
    from .demo_report import demo_page
    from .flow_panels import FlowPanels
    from .studies import studies, Study, get_study, run_study, read_study, collect_study, summarize, report
    from .demo import demos, DemoPlan, get_demo, render_scenes, training_step, step_costs, pick_threads, fit_budget, train_demo, readings, compare_readings, run_demo
    from .lab import explorers, lab_notebook, write_notebooks, check_installed, free_port, LabServer, run_lab
    from .tempering import TrainedRun, open_run, Tempering, temper, guesses, tempering_text, show_tempering, keep_temperature, undo_temperature, write_tempering
    from .temperature_study import verdict, temperature_report
    from .resolution import resolution_sizes, StreetViews, score_sizes, average_sizes, show_resolution, resolution_table
    from .cli import Command, Train, parse_train, Eval, Predict, Export, Temperature, Demo, StudyCommand, BenchCommand, Lab, App, main

_HOME = { # public name -> module, loaded on first use so that `import winwin` stays quick
    'Windows': 'windows', 'window_mask': 'windows', 'stack_windows': 'windows', 'free_corners': 'windows', 'sample_windows': 'windows', 'sample_tokens': 'windows', 'random_sizes': 'windows', 'crop_windows': 'windows', 'show_windows': 'windows', 'distance_histogram': 'windows', 'seen_neighbours': 'windows',
    'Scheme': 'schemes', 'parse_scheme': 'schemes', 'present': 'schemes',
    'patch_view': 'tokens', 'patchify': 'tokens', 'unpatchify': 'tokens', 'pad_to_patches': 'tokens', 'unpad': 'tokens', 'gather_tokens': 'tokens', 'scatter_tokens': 'tokens', 'PatchEmbed': 'tokens', 'check_windows': 'tokens',
    'rope_table': 'rope', 'apply_rope': 'rope', 'rotate_pairs': 'rope', 'half_to_pairs': 'rope', 'pairs_to_half': 'rope', 'sincos_pos': 'rope', 'trained_grid': 'rope',
    'vit_sizes': 'vit', 'attend': 'vit', 'Attention': 'vit', 'rotate_back': 'vit', 'gelu': 'vit', 'Mlp': 'vit', 'Block': 'vit', 'to_tiles': 'vit', 'from_tiles': 'vit', 'attend_locally': 'vit', 'ViT': 'vit', 'run_blocks': 'vit', 'image_statistics': 'vit', 'init_weights': 'vit',
    'Head': 'heads', 'LinearHead': 'heads', 'ConvNeXtBlock': 'heads', 'ConvNeXtHead': 'heads', 'ResidualConvUnit': 'heads', 'FeatureFusion': 'heads', 'DPTHead': 'heads', 'dpt_hooks': 'heads', 'DecoupledDPTHead': 'heads',
    'CrossAttention': 'decoder', 'DecoderBlock': 'decoder', 'Decoder': 'decoder', 'quiet_start': 'decoder', 'layer_groups': 'decoder', 'no_decay': 'decoder',
    'guide_methods': 'guidance', 'bin_flow': 'guidance', 'perturb_map': 'guidance', 'best_windows': 'guidance', 'guide_windows': 'guidance', 'match_coverage': 'guidance', 'show_guidance': 'guidance',
    'CompletionModel': 'completion', 'completion_loss': 'completion', 'complete': 'completion',
    'read_checkpoint': 'weights', 'Unfilled': 'weights', 'fill_model': 'weights',
    'backbones': 'backbones', 'TimmEncoder': 'backbones', 'embed_timm': 'backbones', 'list_backbones': 'backbones', 'timm_encoder': 'backbones', 'from_transformers': 'backbones',
    'DenseModel': 'models', 'FlowModel': 'models', 'list_models': 'models', 'model_task': 'models', 'create_model': 'models',
    'literal_kwargs': 'croco_files', 'CrocoFile': 'croco_files', 'read_croco': 'croco_files', 'croco_arguments': 'croco_files',
    'croco_names': 'croco', 'to_croco': 'croco', 'load_croco': 'croco',
    'attention_sums': 'attention', 'head_taus': 'attention', 'self_probability': 'attention', 'token_products': 'attention', 'attention_logits': 'attention', 'attention_rows': 'attention', 'attention_entropy': 'attention', 'window_mass': 'attention', 'attention_distance': 'attention', 'distance_profile': 'attention',
    'TauCurve': 'curves',
    'attention_kinds': 'layers', 'attention_layers': 'layers', 'layer_tau': 'layers', 'set_layer_tau': 'layers', 'watch': 'layers', 'Seen': 'layers', 'capture': 'layers',
    'constant_attention': 'constant', 'constant_self_probability': 'constant', 'constant_tau': 'constant', 'constant_height': 'constant',
    'View': 'views', 'make_views': 'views', 'layer_means': 'views',
    'output_sizes': 'matching', 'Match': 'matching', 'match_temperature': 'matching',
    'learn_temperature': 'learning', 'Learned': 'learning',
    'set_temperature': 'temperature', 'get_temperature': 'temperature', 'fold_temperature': 'temperature', 'log_ratio': 'temperature', 'sweep_temperature': 'temperature', 'Sweep': 'temperature',
    'temperatures': 'pretrained', 'restore_temperatures': 'pretrained', 'HubModel': 'pretrained', 'save_model': 'pretrained', 'load_model': 'pretrained', 'push_model': 'pretrained',
    'size_scale': 'positions', 'set_position_scale': 'positions', 'get_position_scale': 'positions',
    'seg_loss': 'losses', 'depth_loss': 'losses',
    'FLOW_CHANNELS': 'flow_losses', 'laplacian_loss': 'flow_losses', 'flow_uncertainty': 'flow_losses', 'flow_loss': 'flow_losses', 'match_targets': 'flow_losses', 'match_loss': 'flow_losses',
    'DEPTH_SCORES': 'metrics', 'SegMetrics': 'metrics', 'show_confusion': 'metrics', 'DepthMetrics': 'metrics',
    'STREET_CLASSES': 'streets', 'make_street': 'streets',
    'camera_rays': 'raycast', 'trace_street': 'raycast', 'street_flow': 'raycast',
    'paint_street': 'paint',
    'FLOW_SCORES': 'flow_metrics', 'FlowMetrics': 'flow_metrics',
    'ERROR_STEPS': 'flow_pictures', 'flow_wheel': 'flow_pictures', 'flow_to_color': 'flow_pictures', 'show_wheel': 'flow_pictures', 'show_flow': 'flow_pictures', 'show_arrows': 'flow_pictures', 'warp': 'flow_pictures', 'show_warp': 'flow_pictures', 'flow_error_map': 'flow_pictures', 'show_flow_error': 'flow_pictures',
    'TEXTURES': 'textures', 'relief': 'textures', 'make_texture': 'textures', 'Photos': 'textures',
    'Motion': 'layered', 'make_motion': 'layered', 'Shape': 'layered', 'make_shape': 'layered', 'Layer': 'layered', 'make_layers': 'layered', 'render_layers': 'layered', 'layers_flow': 'layered', 'relight': 'layered',
    'DrivingWorld': 'worlds', 'color_labels': 'worlds', 'show_world': 'worlds', 'LayeredFlow': 'worlds',
    'read_image': 'files', 'read_labels': 'files', 'read_depth': 'files', 'find_files': 'files', 'FileDataset': 'files',
    'fit_to_patches': 'augment', 'resize_item': 'augment', 'resize_flow': 'augment', 'Augment': 'augment',
    'SegFolder': 'datasets', 'DepthFolder': 'datasets', 'BDD100K': 'datasets', 'NYUv2': 'datasets',
    'read_flow': 'flow_files', 'write_flow': 'flow_files',
    'FlowPairs': 'flow_datasets', 'FlowFolder': 'flow_datasets', 'FramePairs': 'flow_datasets', 'FlyingChairs': 'flow_datasets', 'FlyingThings3D': 'flow_datasets', 'Sintel': 'flow_datasets', 'TartanAir': 'flow_datasets', 'Spring': 'flow_datasets', 'KITTI': 'flow_datasets',
    'FlowAugment': 'flow_augment',
    'parse_mix': 'mixtures', 'Mix': 'mixtures',
    'Task': 'tasks', 'SegTask': 'tasks', 'DepthTask': 'tasks', 'FlowTask': 'tasks', 'MeanMetrics': 'tasks', 'CompletionTask': 'tasks', 'make_task': 'tasks', 'evaluate': 'tasks', 'read_full': 'tasks',
    'derive_seed': 'streams', 'derive_generator': 'streams', 'Draws': 'streams', 'draws_of': 'streams', 'batches': 'streams', 'stack': 'streams',
    'pack_state': 'checkpoints', 'unpack_state': 'checkpoints', 'write_folder': 'checkpoints', 'settle': 'checkpoints', 'write_state': 'checkpoints', 'read_state': 'checkpoints', 'find_model': 'checkpoints', 'differences': 'checkpoints',
    'clock': 'meter', 'resident': 'meter',
    'TrainConfig': 'train', 'read_config': 'train', 'make_optimizer': 'train', 'make_schedule': 'train', 'TrainResult': 'train', 'fit': 'train', 'resume': 'train', 'read_log': 'train', 'show_log': 'train', 'LiveCurve': 'train',
    'presets': 'recipes', 'Recipe': 'recipes', 'get_preset': 'recipes', 'variants': 'recipes', 'change': 'recipes', 'recipe_variants': 'recipes', 'read_recipe': 'recipes', 'recipe_data': 'recipes', 'recipe_task': 'recipes', 'recipe_model': 'recipes', 'recipe_augment': 'recipes', 'train_recipe': 'recipes',
    'wide_taus': 'tuning', 'FullLoss': 'tuning', 'Judged': 'tuning', 'TemperatureTable': 'tuning', 'compare_temperatures': 'tuning', 'token_counts': 'tuning',
    'tile_offsets': 'predict', 'tile_weights': 'predict', 'head_reach': 'predict', 'predict_bands': 'predict', 'auto_rows': 'predict', 'predict': 'predict',
    'Prediction': 'predictor', 'Predictor': 'predictor', 'FolderReport': 'predictor',
    'flow_weights': 'flow_predict', 'predict_flow': 'flow_predict',
    'FlowPrediction': 'flow_predictor', 'FlowPredictor': 'flow_predictor',
    'SUBMISSIONS': 'submissions', 'submission_files': 'submissions', 'SubmissionReport': 'submissions', 'write_submission': 'submissions',
    'WholeImage': 'exports', 'DensePath': 'exports', 'FlowPath': 'exports', 'Exported': 'exports', 'export_model': 'exports',
    'AttentionComparison': 'probes', 'compare_attention': 'probes', 'show_discrepancy': 'probes',
    'shipped_models': 'shipped', 'shipped_model': 'shipped',
    'CountFlops': 'cost', 'Cost': 'cost', 'trace_cost': 'cost', 'flops': 'cost', 'Memory': 'cost', 'memory': 'cost', 'Plan': 'cost', 'plan': 'cost',
    'Speed': 'speed', 'step_seconds': 'speed', 'measure_speed': 'speed',
    'WINDOW_COLORS': 'canvas', 'heat_bytes': 'canvas', 'lut_bytes': 'canvas', 'image_bytes': 'canvas', 'window_boxes': 'canvas', 'boxes_windows': 'canvas', 'TokenCanvas': 'canvas', 'draw_canvas': 'canvas',
    'shown_parts': 'snapshots', 'take_snapshot': 'snapshots', 'snapshot_changes': 'snapshots', 'snapshot_page': 'snapshots',
    'list_devices': 'explorers', 'Latest': 'explorers', 'Download': 'explorers', 'CopyText': 'explorers', 'Explorer': 'explorers',
    'window_facts': 'window_explorer', 'scheme_coverage': 'window_explorer', 'scheme_of': 'window_explorer', 'WindowExplorer': 'window_explorer',
    'Guidance': 'guidance_explorer', 'guide_once': 'guidance_explorer', 'GuidanceExplorer': 'guidance_explorer',
    'fit_image': 'attention_maps', 'LayerLook': 'attention_maps', 'AttentionMaps': 'attention_maps', 'usual_windows': 'attention_maps', 'tempered': 'attention_maps',
    'TokenRows': 'token_rows', 'token_panels': 'token_rows', 'layer_rows': 'token_rows', 'mosaic': 'token_rows', 'tau_curve': 'token_rows', 'curve_map': 'token_rows',
    'example_image': 'attention_explorer', 'AttentionExplorer': 'attention_explorer',
    'LineChart': 'charts', 'histogram_line': 'charts', 'draw_chart': 'charts',
    'token_stats': 'layer_curves', 'LayerCurves': 'layer_curves', 'read_with': 'layer_curves', 'answer_picture': 'layer_curves', 'answer_change': 'layer_curves',
    'example_data': 'temperature_explorer', 'TemperatureExplorer': 'temperature_explorer',
    'benches': 'bench', 'compare': 'bench', 'ratio': 'bench', 'Bench': 'bench', 'register': 'bench', 'run_bench': 'bench', 'gemm': 'bench', 'cpu_share': 'bench', 'pick_device': 'bench', 'judge': 'bench', 'peak_memory': 'bench', 'PlainViT': 'bench', 'vit_flops': 'bench', 'report_bench': 'bench',
    'Html': 'pages', 'html_text': 'pages', 'html_code': 'pages', 'png_uri': 'pages', 'html_picture': 'pages', 'html_gallery': 'pages', 'html_columns': 'pages', 'html_drawing': 'pages', 'html_table': 'pages', 'html_bar': 'pages', 'html_numbers': 'pages', 'HtmlPage': 'pages', 'html_legend': 'pages',
    'Check': 'doctor', 'check_versions': 'doctor', 'check_pairing': 'doctor', 'check_device': 'doctor', 'check_bf16': 'doctor', 'check_forward': 'doctor', 'Doctor': 'doctor',
    'Panels': 'panels', 'SegPanels': 'panels', 'DepthPanels': 'panels', 'window_picture': 'panels', 'draw_picture': 'panels', 'loss_drawing': 'panels', 'read_images': 'panels', 'scene_pictures': 'panels', 'reading_pictures': 'panels',
    'demo_page': 'demo_report',
    'FlowPanels': 'flow_panels',
    'studies': 'studies', 'Study': 'studies', 'get_study': 'studies', 'run_study': 'studies', 'read_study': 'studies', 'collect_study': 'studies', 'summarize': 'studies', 'report': 'studies',
    'demos': 'demo', 'DemoPlan': 'demo', 'get_demo': 'demo', 'render_scenes': 'demo', 'training_step': 'demo', 'step_costs': 'demo', 'pick_threads': 'demo', 'fit_budget': 'demo', 'train_demo': 'demo', 'readings': 'demo', 'compare_readings': 'demo', 'run_demo': 'demo',
    'explorers': 'lab', 'lab_notebook': 'lab', 'write_notebooks': 'lab', 'check_installed': 'lab', 'free_port': 'lab', 'LabServer': 'lab', 'run_lab': 'lab',
    'TrainedRun': 'tempering', 'open_run': 'tempering', 'Tempering': 'tempering', 'temper': 'tempering', 'guesses': 'tempering', 'tempering_text': 'tempering', 'show_tempering': 'tempering', 'keep_temperature': 'tempering', 'undo_temperature': 'tempering', 'write_tempering': 'tempering',
    'verdict': 'temperature_study', 'temperature_report': 'temperature_study',
    'resolution_sizes': 'resolution', 'StreetViews': 'resolution', 'score_sizes': 'resolution', 'average_sizes': 'resolution', 'show_resolution': 'resolution', 'resolution_table': 'resolution',
    'Command': 'cli', 'Train': 'cli', 'parse_train': 'cli', 'Eval': 'cli', 'Predict': 'cli', 'Export': 'cli', 'Temperature': 'cli', 'Demo': 'cli', 'StudyCommand': 'cli', 'BenchCommand': 'cli', 'Lab': 'cli', 'App': 'cli', 'main': 'cli',
}
__all__ = ['__version__', *_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module 'winwin' has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))

class _Package(ModuleType):
    "`from winwin import predict` is the function, also after the module `winwin.predict` was imported"
    def __setattr__(self, name, value):
        if _HOME.get(name) == name and isinstance(value, ModuleType): value = getattr(value, name)
        super().__setattr__(name, value)

sys.modules[__name__].__class__ = _Package
