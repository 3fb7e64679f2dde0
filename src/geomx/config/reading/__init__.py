"""From a TOML document to tables: every fault is told at once, with its file, line and key.

`checking.py` first; `document.py` knows the lines, `fields.py` and `forms.py` what a key allows, `overrides.py` reads
`key=value` of a command, `problems.py` says what is wrong.
"""
