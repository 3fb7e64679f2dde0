"""What starts nodes where they run: one file an engine, each behind `contract.Engine`.

`contract.py` first: `Job` is what one site is to run, and `Engine` what `geomx up`, `status`, `logs`, `attach` and
`down` ask of it. `jobs.py` makes the jobs of a run. `machines.py` is what `local.py` and `ssh.py` have in common: on
each of their machines `on_machine.py` is called, and `keeper.py` sees to the nodes; both need nothing but Python.
`manifests.py` makes what `kubernetes.py` applies. The registry is `geomx.config`'s, since a description names engines.
"""

from geomx.config.tables.sites import engines

__all__ = ["engines"]
