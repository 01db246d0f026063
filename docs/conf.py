"Sphinx settings of the site; tools/docs.py writes the sources and calls Sphinx."
from configparser import ConfigParser
from pathlib import Path

ini = ConfigParser(delimiters=['='], interpolation=None)
ini.read(next(p/'settings.ini' for p in Path(__file__).resolve().parents if (p/'settings.ini').exists()), encoding='utf-8')
cfg = ini['DEFAULT']

project = html_title = cfg['title']
author, copyright, release = cfg['author'], cfg['copyright'], cfg['version']
extensions = ['myst_nb']
exclude_patterns = ['readme']

nb_render_markdown_format = 'gfm' # tables in outputs
nb_execution_mode = 'off' # pages show the outputs saved in the notebooks
nb_merge_streams = True
myst_enable_extensions = ['dollarmath', 'amsmath', 'colon_fence']
myst_heading_anchors = 3
suppress_warnings = ['myst.header'] # a name is a level-3 heading wherever it stands

html_theme = 'furo'
html_static_path = ['_static']
html_css_files = ['custom.css']
html_js_files = ['sidebar.js']
html_logo = html_favicon = '_static/logo.svg'
html_show_sourcelink = html_copy_source = html_show_sphinx = html_use_index = False
html_domain_indices = False
html_math_renderer = 'mathml'
html_theme_options = {
    'light_css_variables': {'color-brand-primary': '#1a5c96', 'color-brand-content': '#1a5c96', 'color-brand-visited': '#1a5c96'},
    'dark_css_variables': {'color-brand-primary': '#7cb8ee', 'color-brand-content': '#7cb8ee', 'color-brand-visited': '#7cb8ee'},
}

def setup(app):
    "Write formulas as MathML, which browsers draw by themselves: no script, no network"
    from docutils import nodes
    from docutils.utils.math import MathError
    from docutils.utils.math.latex2mathml import tex2mathml
    from sphinx.util import logging
    def visit(self, node):
        try: self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
        except MathError as e: logging.getLogger(__name__).warning('cannot read the formula %r: %s', node.astext(), e, location=node)
        raise nodes.SkipNode
    app.add_html_math_renderer('mathml', (visit, None), (visit, None))
