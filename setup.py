"Packaging entry point; every value lives in settings.ini (edit there, not here)."
from configparser import ConfigParser
from pathlib import Path
import shlex, setuptools

ini = ConfigParser(delimiters=['='], interpolation=None)
ini.read('settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']
def words(key): return shlex.split(cfg.get(key, ''))

setuptools.setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'],
    author=cfg['author'], author_email=cfg['author_email'], license='Apache-2.0', license_files=['LICENSE'],
    long_description=Path('README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    python_requires='>=' + cfg['min_python'], packages=setuptools.find_packages(include=[cfg['lib_path'] + '*']),
    package_data={cfg['lib_path']: ['static/*', 'static/*/*', 'static/*/*/*']}, install_requires=words('requirements'),
    extras_require={k: words(k + '_requirements') for k in ('lab', 'app', 'export', 'data', 'dev')},
    classifiers=['Programming Language :: Python :: 3', f"Intended Audience :: {cfg['audience']}"],
    entry_points={'console_scripts': words('console_scripts'), 'nbdev': [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"]},
)
