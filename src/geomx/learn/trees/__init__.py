"""Trees by histograms, and what is made of them.

`bins.py` makes numbers of features small whole ones, `histograms.py` adds them up (compiled, `kernels/`), `growing.py`
grows one tree, and `boosting.py` and `forest.py` are ensembles; `objectives/` has one file an objective. Gradients are
whole numbers, too (`fixed.py`), so sums over workers are exact, and trees the same bits as one machine's with the same
bins.
"""
