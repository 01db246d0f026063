"Packaging entry point; every value lives in settings.ini (edit there, not here)."
from configparser import ConfigParser
from pathlib import Path
import json, re, shlex, setuptools
from setuptools.command.build_py import build_py

ini = ConfigParser(delimiters=['='], interpolation=None)
ini.read('settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
def words(key): return shlex.split(cfg.get(key, ''))

def portable(text):
    "README whose links work outside the repository: absolute if it has an address, otherwise words alone"
    url, branch = cfg['git_url'].rstrip('/'), cfg['branch']
    def link(m):
        picture, label, target = m.groups()
        if '://' in target or target.startswith('#'): return m[0]
        if url: return f'{picture}[{label}]({url}/{"raw" if picture else "blob"}/{branch}/{target})'
        return f'*{label}*' if picture else label
    return re.sub(r'(!?)\[([^\]]*)\]\(([^)\s]+)\)', link, text.split('-->\n', 1)[-1].lstrip())

urls = {'Paper': cfg['paper_url'], 'Source': cfg['git_url'], 'Documentation': cfg['doc_host'] and cfg['doc_host'] + cfg['doc_baseurl']}
entries = {'console_scripts': words('console_scripts')}
if cfg['doc_host']: entries['nbdev'] = [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"] # lets other nbdev sites link here

class BuildWithTutorials(build_py):
    "Packs the tutorials, without results, so that `winwin lab` can write them"
    def run(self):
        super().run()
        if self.editable_mode: return # they are where they are
        to = Path(self.build_lib)/cfg['lib_path']/'static'/'tutorials'
        to.mkdir(parents=True, exist_ok=True)
        for file in sorted(Path('nbs/tutorials').glob('*.ipynb')):
            nb = json.loads(file.read_text(encoding='utf-8'))
            for cell in nb['cells']: cell.update(dict(outputs=[]) if cell['cell_type']=='code' else {})
            (to/file.name).write_text(json.dumps(nb, indent=1) + '\n', encoding='utf-8')

setuptools.setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'],
    author=cfg['author'], license='Apache-2.0', license_files=['LICENSE'],
    project_urls={k: v for k,v in urls.items() if v},
    long_description=portable(Path('README.md').read_text(encoding='utf-8')), long_description_content_type='text/markdown',
    python_requires='>=' + cfg['min_python'], packages=setuptools.find_packages(include=[cfg['lib_path'] + '*']),
    package_data={cfg['lib_path']: ['py.typed', 'static/*', 'static/*/*', 'static/*/*/*']}, install_requires=words('requirements'),
    extras_require={k: words(k + '_requirements') for k in ('lab', 'app', 'export', 'data', 'dev')},
    classifiers=['Programming Language :: Python :: 3', f"Intended Audience :: {cfg['audience']}", 'Typing :: Typed',
                 'Topic :: Scientific/Engineering :: Image Processing'],
    entry_points=entries, cmdclass={'build_py': BuildWithTutorials},
)
