"The demo, the studies of the paper, and their reports"
# Made by tools/nb.py from nbs/rooms.toml and the notebooks' public names: edit those, not this file.
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .demo import demos, DemoPlan, get_demo, render_scenes, step_costs, pick_threads
    from .demo import fit_budget, start_encoder, train_demo, prediction_modes, compare_predictions
    from .demo import run_demo, compare_training, store_comparison, stored_comparison
    from .studies import SWEEP_TAUS, SWEEP_IMAGES, PHOTO_STUDIES, Study, named_reading
    from .studies import log_ratio_scores, pair_scores, loss_curve, class_shares, rare_scores
    from .studies import list_studies, get_study, run_study, result_path, run_folder, trained_steps
    from .studies import recipe_settings, outdated, missing_readings, sums_path, read_study
    from .studies import collect_study, summarize, report, verdict, temperature_report, photo_table
    from .resolution import resolution_sizes, StreetViews, score_sizes, resolution_study
    from .resolution import average_sizes, show_resolution, resolution_table
    from .programme import camvid_study, driving_study, nyuv2_study, flow_study, flow_full_study
    from .programme import Piece, list_pieces, claim_studies, Job, open_jobs, train_flops
    from .programme import queue_status, run_queue, work, collect_claims, restore_claims
    from .claims import SCORES, VIDEO_BLOCK, VERDICTS, Comparison, compare_runs, read_results
    from .claims import comparison_verdict, claim_verdict, Claim, list_claims, claim_rows
    from .claims import claims_table, difference_points, claims_figure, show_claims
    from .reproduce import Target, list_targets, get_target, Outcome, reproduce_run

_HOME = { # public name -> module, loaded on first use so that an import stays quick
    'demos': 'demo', 'DemoPlan': 'demo', 'get_demo': 'demo', 'render_scenes': 'demo',
    'step_costs': 'demo', 'pick_threads': 'demo', 'fit_budget': 'demo', 'start_encoder': 'demo',
    'train_demo': 'demo', 'prediction_modes': 'demo', 'compare_predictions': 'demo',
    'run_demo': 'demo', 'compare_training': 'demo', 'store_comparison': 'demo',
    'stored_comparison': 'demo',
    'SWEEP_TAUS': 'studies', 'SWEEP_IMAGES': 'studies', 'PHOTO_STUDIES': 'studies',
    'Study': 'studies', 'named_reading': 'studies', 'log_ratio_scores': 'studies',
    'pair_scores': 'studies', 'loss_curve': 'studies', 'class_shares': 'studies',
    'rare_scores': 'studies', 'list_studies': 'studies', 'get_study': 'studies',
    'run_study': 'studies', 'result_path': 'studies', 'run_folder': 'studies',
    'trained_steps': 'studies', 'recipe_settings': 'studies', 'outdated': 'studies',
    'missing_readings': 'studies', 'sums_path': 'studies', 'read_study': 'studies',
    'collect_study': 'studies', 'summarize': 'studies', 'report': 'studies', 'verdict': 'studies',
    'temperature_report': 'studies', 'photo_table': 'studies',
    'resolution_sizes': 'resolution', 'StreetViews': 'resolution', 'score_sizes': 'resolution',
    'resolution_study': 'resolution', 'average_sizes': 'resolution',
    'show_resolution': 'resolution', 'resolution_table': 'resolution',
    'camvid_study': 'programme', 'driving_study': 'programme', 'nyuv2_study': 'programme',
    'flow_study': 'programme', 'flow_full_study': 'programme', 'Piece': 'programme',
    'list_pieces': 'programme', 'claim_studies': 'programme', 'Job': 'programme',
    'open_jobs': 'programme', 'train_flops': 'programme', 'queue_status': 'programme',
    'run_queue': 'programme', 'work': 'programme', 'collect_claims': 'programme',
    'restore_claims': 'programme',
    'SCORES': 'claims', 'VIDEO_BLOCK': 'claims', 'VERDICTS': 'claims', 'Comparison': 'claims',
    'compare_runs': 'claims', 'read_results': 'claims', 'comparison_verdict': 'claims',
    'claim_verdict': 'claims', 'Claim': 'claims', 'list_claims': 'claims', 'claim_rows': 'claims',
    'claims_table': 'claims', 'difference_points': 'claims', 'claims_figure': 'claims',
    'show_claims': 'claims',
    'Target': 'reproduce', 'list_targets': 'reproduce', 'get_target': 'reproduce',
    'Outcome': 'reproduce', 'reproduce_run': 'reproduce',
}
__all__ = [*_HOME]

def __getattr__(name):
    if name not in _HOME: raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f'.{_HOME[name]}', __name__), name)

def __dir__(): return sorted(set(globals()) | set(__all__))
