"""Write winwin/static/guide.json, what `winwin list` and `winwin train PRESET --help` show.

    python tools/guide.py            collect it anew from the modules and nbs/results
"""
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

if __name__ == '__main__':
    from winwin.guide import collect_guide
    text = json.dumps(collect_guide(ROOT/'nbs'/'results'), indent=1) + '\n'
    (ROOT/'winwin'/'static'/'guide.json').write_text(text, encoding='utf-8')
