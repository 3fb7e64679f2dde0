"""How Sphinx builds the documents: `make docs`, or `sphinx-build -q -W --keep-going -b html docs docs/_build/html`."""

from importlib.metadata import version as version_of

project = "geomx"
author = "the geomx authors"
version = release = version_of("geomx")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings are written in plain text, with `names` in single backquotes
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "geomx"
